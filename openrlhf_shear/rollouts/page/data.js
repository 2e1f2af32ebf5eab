// Decoding: the index at once, the block of a group when it is opened.
const $ = id => document.getElementById(id);
const parse = id => JSON.parse($(id).textContent);
const {symbol: SYMBOL, levels: LEVELS, colours: COLOURS} = parse("words");
const NAME = SYMBOL === "weight" ? SYMBOL : `weight ${SYMBOL}`;
const INDEX = parse("index");
const NAMES = {true: "✓ correct", false: "✗ incorrect", null: "? no reward"};
const NO_VALUE = 65535;  // a cell of a heatmap that is not finite

const digits = value => value === null || value === undefined ? "none" : value.toPrecision(4);
const short = value => Number.isFinite(value) ? value.toPrecision(3) : "none";
const brief = value => value === null ? "none" : String(Number(value.toPrecision(3))).replace("-", "−");

function make(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {}))
    if (name in made) made[name] = value; else made.setAttribute(name, value);
  made.append(...children);  // strings become text, never markup
  return made;
}

const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer;
const floats = text => text === null ? null : new Float32Array(bytes(text));

// The group's rollouts: what its block holds of each, and its row of the index.
function readGroup(g) {
  const block = parse(`block-${g}`);
  const rows = INDEX.rows.filter(row => row.group === g);
  const rollouts = block.rollouts.map((contents, place) => {
    const weights = floats(contents.weights), advantages = floats(contents.advantages);
    const shades = rows[place].shade ? weights ?? advantages.map(Math.abs) : null;  // no shade: no finite number
    return {...rows[place], ...contents, weights, advantages, shades};
  });
  return {...INDEX.groups[g], g, prompt: block.prompt, label: block.label, rollouts};
}

const rowOf = rollout => INDEX.rows.find(row => row.group === rollout.group && row.place === rollout.place);
const samples = group => new Map(group.rollouts.map(rollout => [rollout.sample, rollout]));

// Tokens [start, end) of a span. Without a known window it ends where the next begins.
function span(rollout, k) {
  const start = rollout.starts[k];
  const end = INDEX.window === null ? rollout.starts[k + 1] ?? rollout.length : start + INDEX.window;
  return {start, end: Math.min(end, rollout.length)};
}

// The span that a token is judged by: of those that cover it, the one of the largest distance; -1 without spans.
function spanOf(rollout, token) {
  let best = -1;
  for (let k = 0; k < rollout.starts.length; k++) {
    const {start, end} = span(rollout, k);
    if (token < start || token >= end) continue;
    if (best < 0 || (rollout.distances[k] ?? -1) > (rollout.distances[best] ?? -1)) best = k;
  }
  return best;
}

// The nearest opposing span: {rollout, k}, or null where nothing opposes.
function nearest(group, rollout, k) {
  const other = rollout.nearestSample[k] >= 0 ? samples(group).get(rollout.nearestSample[k]) : undefined;
  return other ? {rollout: other, k: rollout.nearestSpan[k]} : null;
}

// Distances between the heatmap spans of two rollouts, whichever of them holds them; null if neither does.
function heatmap(a, b) {
  const [first, second] = a.sample < b.sample ? [a, b] : [b, a];
  const kept = first.heat[second.sample];
  if (!kept) return null;
  const codes = new Uint16Array(bytes(kept.codes)), width = second.heatSpans.length, swapped = first !== a;
  const value = (row, column) => {
    const code = swapped ? codes[column * width + row] : codes[row * width + column];
    return code === NO_VALUE ? null : kept.low + code * kept.step;
  };
  return {rows: a.heatSpans, columns: b.heatSpans, value};
}
