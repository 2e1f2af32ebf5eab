// The open group: its prompt, legend and a card for each rollout, correct ones beside incorrect ones.
let current = null;  // {group, row, range, cards: sample -> {node, tokens}}

function openRow(row, takeFocus = false) {
  if (current?.group.g !== row.group) showGroup(readGroup(row.group));
  current.row = row;
  mark(row);
  for (const [sample, {node}] of current.cards) node.setAttribute("aria-current", sample === row.sample);
  const address = new URLSearchParams({g: current.group.name, r: row.sample});
  history.replaceState(null, "", `#${address}`);
  const {node, tokens} = current.cards.get(row.sample);
  const at = shown.indexOf(row);
  $("previous").disabled = at <= 0;
  $("next").disabled = at < 0 || at === shown.length - 1;
  if (takeFocus) (tokens.querySelector("[tabindex='0']") ?? $("main")).focus({preventScroll: true});
  return node;
}

// A rollout of the list by a step from the open one; the page goes there.
function step(by) {
  const row = shown[shown.indexOf(current.row) + by];
  if (row) openRow(row, true).scrollIntoView({block: "start"});
}

function showGroup(group) {
  current = {group, row: null, cards: new Map(), range: null};
  const count = outcome => group.rollouts.filter(rollout => rollout.correct === outcome).length;
  const none = count(null);
  $("group-name").textContent = `Group ${group.name}`;
  $("group-facts").textContent = `${group.rollouts.length} rollouts: ${count(true)} correct, ${count(false)} incorrect` +
    (none ? `, ${none} without a reward` : "") +
    (group.mixed ? "" : ". Not mixed: no rollout opposes another, so there are no nearest spans to see.");
  $("prompt").textContent = group.prompt;
  $("label").textContent = group.label;
  clearSelection();
  showCards();
  showHeatmaps();
}

function shadeRange(group) {
  const ofPage = $("range").value === "page";
  const kinds = new Set(group.rollouts.map(rollout => rollout.shade));
  const rows = (ofPage ? INDEX.rows : group.rollouts).filter(row => row.shade !== null && kinds.has(row.shade));
  return rows.length ? [Math.min(...rows.map(row => row.low)), Math.max(...rows.map(row => row.high))] : null;
}

function showCards() {
  const {group} = current;
  current.range = shadeRange(group);
  showLegend();
  showProfiles();
  current.cards.clear();
  const sides = [[true], [false, null]].map(outcomes => group.rollouts.filter(one => outcomes.includes(one.correct)));
  $("cards").className = sides.every(side => side.length) ? "both" : "";
  $("cards").replaceChildren(...sides.filter(side => side.length).map(side =>
    make("div", {className: "side"}, ...side.map(card))));
}

function showLegend() {
  const {group, range} = current, kinds = new Set(group.rollouts.map(rollout => rollout.shade));
  const words = kinds.has("weights") ? `Background: the token's ${NAME}, which multiplies its advantage.`
    : kinds.has("advantages") ? "This rule gives no weights. Background: the size of the token's own advantage."
    : group.mixed ? "This rule gives no weights: tokens are not shaded."
    : "No weights were made, since the group is not mixed: every token counts alike, and none is shaded.";
  $("legend-text").textContent = range && range[0] === range[1] ? `${words} All are ${digits(range[0])}.` : words;
  $("range").parentElement.hidden = $("ramp").hidden = $("ramp-ends").hidden = !range || range[0] === range[1];
  ramp("ramp", "ramp-ends", range, LEVELS);
}

function ramp(id, ends, range, count) {
  if (!range) return;
  const colour = i => make("i", {style: `background: var(--w${i})`});
  $(id).replaceChildren(...Array.from({length: count}, (_, i) => colour(i)));
  const values = [range[0], (range[0] + range[1]) / 2, range[1]];
  $(ends).replaceChildren(...values.map(value => make("span", {}, digits(value))));
}

const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

function push(advantage) {
  if (advantage === null) return "not known";
  return advantage > 0 ? `+${brief(advantage)}, reinforced` : advantage < 0 ? `${brief(advantage)}, discouraged` : "0, no push";
}

function facts(rollout) {
  const found = [["Reward", brief(rollout.reward)], ["Advantage", push(rollout.advantage)],
    ["Length", `${rollout.length} tokens${rollout.truncated ? ", truncated" : ""}`]];
  if (rollout.shade)
    found.push([rollout.weights ? SYMBOL : "|token advantage|",
      `${short(rollout.low)} to ${short(rollout.high)}, mean ${short(rollout.mean)}`]);
  const {error, shades} = rollout;
  if (error > 0 && error < rollout.length && shades)
    found.push([`Mean ${rollout.weights ? SYMBOL : "size"} around the first error`,
      `${short(mean(shades.subarray(0, error)))} before, ${short(mean(shades.subarray(error)))} from it on`]);
  return make("dl", {className: "facts"}, ...found.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function card(rollout) {
  const title = make("h4", {id: `card-${rollout.place}`}, `Rollout ${rollout.sample}`,
    make("span", {className: `outcome ${rollout.correct}`}, NAMES[rollout.correct]));
  const tokens = make("div", {className: "tokens", role: "group", "aria-label": `Response of rollout ${rollout.sample}`});
  tokens.append(tokenNodes(rollout, 0, rollout.length, current.range));
  tokens.rollout = rollout;
  const first = tokens.querySelector(".t");
  if (first) tokenStop(first);
  const node = make("article", {className: "card", "aria-labelledby": title.id}, title, facts(rollout));
  if (rollout.error !== null) {
    const token = rollout.tokens[rollout.error];
    node.append(make("p", {className: "note error"}, token === undefined ? "First error: it ends too early"
      : `First error: token ${rollout.error} “${visible(token).trim()}”`));
  }
  if (!rollout.shade && current.range) node.append(make("p", {className: "note soft"}, "No weights of this rollout."));
  if (!rollout.length) node.append(make("p", {className: "note soft"}, "The response is empty."));
  node.append(tokens);
  current.cards.set(rollout.sample, {node, tokens});
  return node;
}
