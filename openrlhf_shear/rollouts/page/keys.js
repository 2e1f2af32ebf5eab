// Keys of responses and of the page; and the start.
function line(nodes, at, by) {  // the token above or below
  const top = node => node.getClientRects()[0].top, left = node => node.getClientRects()[0].left, height = 3;
  let i = at, first = null;
  for (i += by; nodes[i]; i += by) {
    if (Math.abs(top(nodes[i]) - (first ?? top(nodes[at]))) < height) {
      if (first !== null && (by < 0 ? left(nodes[i]) <= left(nodes[at]) : left(nodes[i]) >= left(nodes[at]))) return i;
    } else if (first === null) {
      first = top(nodes[i]);
      if (by < 0 ? left(nodes[i]) <= left(nodes[at]) : left(nodes[i]) >= left(nodes[at])) return i;
    } else return i - by;  // the line is shorter
  }
  return first === null ? at : i - by;
}

function tokenKeys(event, tokens) {
  const node = event.target.closest(".t");
  if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
  const {rollout} = tokens, nodes = [...tokens.querySelectorAll(".t")], at = node.token;
  const letters = $("letters").checked ? {
    e: () => rollout.error ?? at,
    w: () => rollout.shades ? rollout.shades.indexOf(Math.max(...rollout.shades)) : at} : {};
  const moves = {ArrowLeft: () => at - 1, ArrowRight: () => at + 1, ArrowUp: () => line(nodes, at, -1),
    ArrowDown: () => line(nodes, at, 1), Home: () => 0, End: () => nodes.length - 1, ...letters};
  if (event.key === "Enter" || event.key === " ") selectToken(rollout, at);
  else if (moves[event.key]) focusToken(rollout, Math.max(0, Math.min(nodes.length - 1, moves[event.key]())));
  else return;
  event.preventDefault();
}

function pageKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (event.key === "Escape") return clearSelection();
  if (event.target.closest("input, select") || !$("letters").checked) return;
  const act = {n: () => step(1), p: () => step(-1), o: goToOther, "/": () => $("search").focus(), "?": () => $("keys").showModal()};
  if (!act[event.key]) return;
  event.preventDefault();
  act[event.key]();
}

const read = event => {
  const node = event.target.closest(".t"), rollout = event.target.closest(".tokens")?.rollout;
  if (node && rollout) $("readout").textContent = describe(current.group, rollout, node.token);
};

function startCards() {
  $("cards").addEventListener("pointerover", read);
  $("cards").addEventListener("focusin", read);
  $("cards").addEventListener("click", event => {
    const node = event.target.closest(".t"), tokens = event.target.closest(".tokens");
    if (!node) return;
    selectToken(tokens.rollout, node.token);
  });
  $("cards").addEventListener("keydown", event => {
    const tokens = event.target.closest(".tokens");
    if (tokens) tokenKeys(event, tokens);
  });
}

function addressed() {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (!asked.has("g")) return undefined;
  const of = INDEX.rows.filter(row => INDEX.groups[row.group].name === asked.get("g"));
  return of.find(row => String(row.sample) === asked.get("r")) ?? of[0];
}

// A phone shows a response first: the prompt, the responses, then the other views, the list and the facts.
function arrange(phone) {
  const [main, columns] = [$("main"), document.querySelector(".columns")], top = main.querySelector(".top");
  const heading = document.querySelector("h1");
  if (phone) {
    top.before($("asked"), $("responses"));
    main.after($("side"));
    columns.after($("about"));
  } else {
    $("views").prepend($("asked"));
    top.after($("responses"));
    main.before($("side"));
    heading.after($("about"));
  }
}

function start() {
  const narrow = matchMedia("(max-width: 61.99rem)");
  arrange(narrow.matches);
  narrow.addEventListener("change", () => arrange(narrow.matches));
  startList();
  startCards();
  startHeatmap();
  document.querySelector("details.heat").open = $("main").clientWidth > 700;  // a phone has the responses first
  direct("↑");
  refresh();
  const asked = addressed();
  const node = openRow(asked ?? INDEX.rows.find(row => INDEX.groups[row.group].mixed) ?? INDEX.rows[0]);
  if (asked) node.scrollIntoView();
  $("range").addEventListener("change", () => { const {row} = current; clearSelection(); showCards(); openRow(row); });
  $("previous").addEventListener("click", () => step(-1));
  $("next").addEventListener("click", () => step(1));
  $("clear").addEventListener("click", clearSelection);
  $("help").addEventListener("click", () => $("keys").showModal());
  addEventListener("keydown", pageKeys);
  addEventListener("hashchange", () => { const row = addressed(); if (row) openRow(row).scrollIntoView(); });
  new ResizeObserver(fitDock).observe($("dock"));
  // Two frames later the first group is on the screen: how long that took, in ms since the navigation.
  requestAnimationFrame(() => requestAnimationFrame(() => document.documentElement.dataset.ready = performance.now().toFixed(0)));
}

start();
