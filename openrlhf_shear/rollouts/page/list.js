// The list of rollouts: filtered, sorted, a part of it at a time; one stop for Tab, arrow keys inside.
const PART = 500;  // rows; more would slow a phone down
const texts = [];  // of a group: prompt, responses, lower case; made when something is first searched for
let shown = [], allowed = PART, tabStop = null;

function groupTexts(g) {
  if (!texts[g]) {
    const block = parse(`block-${g}`);
    texts[g] = {prompt: block.prompt.toLowerCase(), responses: block.rollouts.map(one => one.tokens.join("").toLowerCase())};
  }
  return texts[g];
}

function matches(row) {
  if ($("step") && ![String(INDEX.groups[row.group].step), "all"].includes($("step").value)) return false;
  const outcome = $("outcome").value, words = $("search").value.trim().toLowerCase();
  if (outcome !== "all" && String(row.correct) !== outcome) return false;
  if ($("mixed").checked && !INDEX.groups[row.group].mixed) return false;
  if (!words) return true;
  const {prompt, responses} = groupTexts(row.group);
  return INDEX.groups[row.group].name.toLowerCase().includes(words) || prompt.includes(words) ||
    responses[row.place].includes(words);
}

// Rows that lack the value stay last; ties keep the order of the file.
function sorted(rows) {
  const key = $("sort").value, sign = $("direction").textContent === "↓" ? -1 : 1;
  if (key === "group") return sign > 0 ? rows : rows.toReversed();
  return rows.toSorted((a, b) => {
    if (a[key] === null || b[key] === null) return (a[key] === null) - (b[key] === null);
    return sign * (a[key] - b[key]);
  });
}

function rowNode(row) {
  const facts = [`${row.length} tokens`];
  if (row.reward !== null) facts.unshift(`reward ${brief(row.reward)}`);
  if (row.spread !== null) facts.push(`spread ${brief(row.spread)}`);
  const node = make("button", {type: "button", className: "row", tabIndex: -1},
    make("b", {}, NAMES[row.correct]), ` ${INDEX.groups[row.group].name} · ${row.sample}`,
    make("span", {className: "soft"}, facts.join(" · ")));
  node.row = row;
  return make("li", {}, node);
}

function refresh() {
  shown = sorted(INDEX.rows.filter(matches));
  const part = shown.slice(0, allowed);
  $("list").replaceChildren(...part.map(rowNode));
  $("found").textContent = `${shown.length} of ${INDEX.rows.length} rollouts`;
  $("more").hidden = part.length === shown.length;
  $("more").textContent = `Show ${Math.min(PART, shown.length - part.length)} more`;
  mark(current?.row);
}

const rowButtons = () => [...$("list").querySelectorAll(".row")];

function setStop(button) {
  if (tabStop) tabStop.tabIndex = -1;
  tabStop = button ?? null;
  if (tabStop) tabStop.tabIndex = 0;
}

// Marks the row of the open rollout, and makes it (or the first) the list's stop for Tab.
function mark(row) {
  const buttons = rowButtons();
  for (const button of buttons) button.setAttribute("aria-current", button.row === row);
  const open = buttons.find(button => button.row === row);
  setStop(open ?? buttons[0]);
  if (open) {  // scrolls the list alone, never the page
    const list = $("list"), box = list.getBoundingClientRect(), at = open.getBoundingClientRect();
    if (at.top < box.top) list.scrollTop -= box.top - at.top;
    else if (at.bottom > box.bottom) list.scrollTop += at.bottom - box.bottom;
  }
}

function listKeys(event) {
  const buttons = rowButtons(), at = buttons.indexOf(document.activeElement);
  const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1}[event.key];
  if (to === undefined || !buttons[to]) return;
  event.preventDefault();
  setStop(buttons[to]);
  buttons[to].focus();
}

// Each step with its correct rollouts, so that the list shows how the run went.
function stepOptions() {
  const counts = new Map();
  for (const row of INDEX.rows) {
    const {step} = INDEX.groups[row.group], [right, all] = counts.get(step) ?? [0, 0];
    counts.set(step, [right + (row.correct === true), all + (row.correct !== null)]);
  }
  return [...counts].map(([step, [right, all]]) => make("option", {value: step}, `${step}: ${right} of ${all} correct`));
}

function startList() {
  $("step")?.append(...stepOptions());
  for (const id of ["outcome", "mixed", "step"]) $(id)?.addEventListener("change", narrow);
  $("sort").addEventListener("change", () => {
    direct($("sort").value === "group" ? "↑" : "↓");
    narrow();
  });
  $("direction").addEventListener("click", () => {
    direct($("direction").textContent === "↓" ? "↑" : "↓");
    narrow();
  });
  let waiting;
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(narrow, 150);  // not at every letter
  });
  $("more").addEventListener("click", () => {
    const before = rowButtons().length;
    allowed += PART;
    refresh();
    rowButtons()[before].focus();
  });
  $("list").addEventListener("keydown", listKeys);
  $("list").addEventListener("click", event => {
    const button = event.target.closest(".row");
    if (!button) return;
    const sameGroup = button.row.group === current.group.g, byKey = event.detail === 0;
    const node = openRow(button.row, byKey);
    (sameGroup || byKey ? node : $("main")).scrollIntoView();  // another group is read from its prompt on
  });
  document.querySelector("form.controls").addEventListener("submit", event => event.preventDefault());
}

function narrow() {
  allowed = PART;
  refresh();
}

function direct(arrow) {
  const words = arrow === "↓" ? "Largest first" : "Smallest first";
  Object.assign($("direction"), {textContent: arrow, title: words});
  $("direction").setAttribute("aria-label", `Order: ${words.toLowerCase()}`);
}
