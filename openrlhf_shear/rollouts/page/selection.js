// Two spans side by side: the one selected, and its nearest opposing one or the other one of a heatmap's cell.
let selection = null;  // {a, b: {rollout, k} or null, name: of b}

function clearSelection() {
  selection = null;
  paint();
  $("comparison").hidden = $("clear").hidden = true;
  $("comparison").replaceChildren();
  $("verdict").textContent = "";
  fitDock();
}

function selectToken(rollout, token) {
  const k = spanOf(rollout, token), near = k < 0 ? null : nearest(current.group, rollout, k);
  openRow(rowOf(rollout));
  if (near) {
    selectSpans({rollout, k}, near, rollout.distances[k], "nearest", "the nearest of all opposing spans");
    followPair(selection);
  } else {
    clearSelection();
    $("verdict").textContent = current.group.mixed ? "This rollout has no spans with nearest opposing ones."
      : "The group is not mixed: nothing opposes this rollout.";
  }
  focusToken(rollout, token);
}

function selectSpans(a, b, distance, name, words) {
  selection = {a, b, name};
  paint();
  $("verdict").textContent = `Distance ${digits(distance)}: ${words}`;
  $("comparison").replaceChildren(excerpt(a, "sel", "selected"), excerpt(b, "near", name));
  $("comparison").hidden = $("clear").hidden = false;
  fitDock();
}

// Room below what is scrolled to, so that the dock never covers it.
function fitDock() {
  document.documentElement.style.setProperty("--dock", `${$("dock").offsetHeight}px`);
}

// A span and a few tokens around it.
function excerpt({rollout, k}, kind, name) {
  const around = 10, {start, end} = span(rollout, k);
  const from = Math.max(0, start - around), to = Math.min(rollout.length, end + around);
  const tokens = make("div", {className: "tokens"});
  tokens.append(tokenNodes(rollout, from, to, current.range));
  for (const node of tokens.querySelectorAll(".t")) node.classList.add(node.token >= start && node.token < end ? kind : "far");
  const go = make("button", {type: "button"}, "Show");
  go.addEventListener("click", () => focusToken(rollout, start));
  go.setAttribute("aria-label", `Show tokens ${start} to ${end - 1} in the response of rollout ${rollout.sample}`);
  return make("div", {}, make("h4", {}, flag("mark", name),
    ` Rollout ${rollout.sample} ${NAMES[rollout.correct]}, tokens ${start} to ${end - 1} `, go), tokens);
}

// Frames of the two spans in the cards.
function paint() {
  for (const node of $("cards").querySelectorAll(".sel, .near")) node.classList.remove("sel", "near");
  for (const node of $("cards").querySelectorAll(".flag.mark")) node.remove();
  if (!selection) return;
  for (const [one, kind, name] of [[selection.a, "sel", "selected"], [selection.b, "near", selection.name]]) {
    const {start, end} = span(one.rollout, one.k);
    const nodes = [...current.cards.get(one.rollout.sample).tokens.querySelectorAll(".t")].slice(start, end);
    for (const node of nodes) node.classList.add(kind);
    nodes[0]?.before(flag("mark", name));
  }
}

function tokenStop(node) {
  const before = node.closest(".tokens").querySelector("[tabindex]");
  if (before && before !== node) for (const name of ["tabindex", "role"]) before.removeAttribute(name);
  node.tabIndex = 0;
  node.setAttribute("role", "button");  // Enter selects
}

function focusToken(rollout, token) {
  const node = current.cards.get(rollout.sample).tokens.querySelectorAll(".t")[token];
  if (!node) return;
  tokenStop(node);
  node.focus({preventScroll: true});
  fitDock();  // its line on the token may be longer now
  node.scrollIntoView({block: "nearest"});
}

// From the focused one of the two spans to the other.
function goToOther() {
  if (!selection) return;
  const {a, b} = selection, at = document.activeElement?.closest(".card .tokens")?.rollout;
  const to = at === b.rollout ? a : b;
  focusToken(to.rollout, span(to.rollout, to.k).start);
}
