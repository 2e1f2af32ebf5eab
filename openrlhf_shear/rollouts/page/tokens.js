// Tokens as text: what cannot be seen is made visible, and nothing of it is markup.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f]/g;

function visible(token) {
  if (token === "") return "∅";
  return token.replace(CONTROLS, mark => mark === "\u007f" ? "␡" : String.fromCharCode(0x2400 + mark.charCodeAt(0)))
    .replaceAll("\t", "⇥\t").replaceAll("\n", "↵\n");
}

// What a value is shaded by, from 0; the range's ends belong to the first and the last colour.
function level(value, [low, high], count = LEVELS) {
  if (!(high > low)) return 0;
  return Math.max(0, Math.min(count - 1, Math.floor((value - low) / (high - low) * count)));
}

const flag = (kind, text) => make("span", {className: `flag ${kind}`}, text);

// Tokens [from, to) of a rollout, with its marks; shaded over a range.
function tokenNodes(rollout, from, to, range) {
  const nodes = document.createDocumentFragment();
  for (let i = from; i < to; i++) {
    if (i === rollout.answer) nodes.append(flag("answer", "answer"));
    if (i === rollout.error) nodes.append(flag("error", "first error"));
    const node = document.createElement("span");
    node.className = rollout.shades ? `t w${level(rollout.shades[i], range)}` : "t";
    if (i === rollout.error) node.classList.add("error");
    node.textContent = visible(rollout.tokens[i]);
    node.token = i;
    nodes.append(node);
  }
  if (to === rollout.length && rollout.error >= to && rollout.error !== null)
    nodes.append(flag("error", "first error: it ends here"));
  return nodes;
}

// One line on a token, for the readout.
function describe(group, rollout, token) {
  const parts = [`Rollout ${rollout.sample}, token ${token} “${visible(rollout.tokens[token]).trim()}”`];
  if (rollout.weights) parts.push(`${SYMBOL} ${digits(rollout.weights[token])}`);
  if (rollout.advantages) parts.push(`token advantage ${digits(rollout.advantages[token])}`);
  const k = spanOf(rollout, token);
  if (k < 0) return parts.join(" · ");
  const {start, end} = span(rollout, k);
  parts.push(`span of tokens ${start} to ${end - 1}`);
  const near = nearest(group, rollout, k);
  if (!near) return [...parts, "nothing opposes it"].join(" · ");
  const other = span(near.rollout, near.k);
  parts.push(`distance ${digits(rollout.distances[k])} to the nearest opposing span: rollout ${near.rollout.sample}, ` +
    `tokens ${other.start} to ${other.end - 1}`);
  return parts.join(" · ");
}
