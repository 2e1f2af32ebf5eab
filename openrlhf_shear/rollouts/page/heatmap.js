// The distances between the spans of two rollouts, drawn; a cursor moves over the cells by pointer or arrow keys.
const MARGIN = {left: 40, top: 6, bottom: 34, right: 8};  // CSS pixels, for the axes
const FONT = "11px system-ui, sans-serif";
let heat = null;  // {a, b, map, range, row, column, cell, width, height}

const heatRange = group => {
  const ends = group.rollouts.flatMap(one => Object.values(one.heat)).flatMap(({low, step}) => [low, low + step * (NO_VALUE - 1)]);
  return ends.length ? [Math.min(...ends), Math.max(...ends)] : null;
};

function showHeatmaps() {
  const {group} = current;
  for (const id of ["heat-a", "heat-b"]) $(id).replaceChildren(...group.rollouts.map(rollout =>
    make("option", {value: rollout.sample}, `rollout ${rollout.sample} ${NAMES[rollout.correct]}`)));
  const first = group.rollouts.find(one => one.correct === false) ?? group.rollouts[0];
  const second = group.rollouts.find(one => one.correct === true && one !== first) ?? group.rollouts.find(one => one !== first);
  showPair(first, second ?? first);
}

function showPair(a, b) {
  $("heat-a").value = a.sample;
  $("heat-b").value = b.sample;
  const range = heatRange(current.group), map = a === b ? null : heatmap(a, b);
  const usable = map && map.rows.length && map.columns.length;
  $("heat-box").hidden = !usable;
  $("heat-words").textContent = usable ? "Distance of two spans, in units of the mean hidden-state norm. Click a cell to see both." : range === null
    ? "The file holds no distances for this group." : a === b ? "Choose two different rollouts."
    : "The file holds no distances between these two.";
  heat = usable ? {a, b, map, range, row: 0, column: 0} : null;
  if (!heat) return;
  $("heat").setAttribute("aria-label", `Distances: spans of rollout ${a.sample} down, of rollout ${b.sample} across. ` +
    "Arrow keys move, Enter shows the two spans.");
  ramp("heat-ramp", "heat-ends", range, COLOURS);
  drawHeat();
}

function drawHeat() {
  if (!heat || !$("heat-box").clientWidth) return;
  const {map, a, b, range} = heat, canvas = $("heat"), ratio = devicePixelRatio, style = getComputedStyle(canvas);
  const rows = map.rows.length, columns = map.columns.length;
  const room = Math.min($("heat-box").clientWidth, 310) - MARGIN.left - MARGIN.right;
  heat.cell = Math.max(2, Math.min(24, Math.floor(room / Math.max(columns, rows))));
  const width = columns * heat.cell + MARGIN.left + MARGIN.right, height = rows * heat.cell + MARGIN.top + MARGIN.bottom;
  const pen = canvas.getContext("2d");
  pen.font = FONT;
  const shown = Math.max(width, MARGIN.left + Math.ceil(pen.measureText(acrossWords()).width) + MARGIN.right);
  Object.assign(canvas, {width: shown * ratio, height: height * ratio});
  Object.assign(canvas.style, {width: `${shown}px`, height: `${height}px`});
  const colours = Array.from({length: COLOURS}, (_, i) => style.getPropertyValue(`--w${i}`));
  pen.scale(ratio, ratio);
  const left = column => MARGIN.left + column * heat.cell, top = row => MARGIN.top + row * heat.cell;
  for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
    const value = map.value(row, column);
    if (value === null) continue;
    pen.fillStyle = colours[level(value, range, COLOURS)];
    pen.fillRect(left(column), top(row), heat.cell, heat.cell);
  }
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.strokeRect(left(0) - .5, top(0) - .5, columns * heat.cell + 1, rows * heat.cell + 1);
  axes(pen, left, top, style.color);
  pen.lineWidth = 2;
  pen.strokeStyle = style.getPropertyValue("--mark");
  pen.strokeRect(left(heat.column) - 1, top(heat.row) - 1, heat.cell + 2, heat.cell + 2);
}

const acrossWords = () => `→ rollout ${heat.b.sample}, token of the span's start`;

function axes(pen, left, top, colour) {
  const {a, b, map, cell} = heat, rows = map.rows.length, columns = map.columns.length;
  pen.fillStyle = colour;
  pen.font = FONT;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const row of rows * cell < 40 ? [0] : [0, rows - 1])
    pen.fillText(span(a, map.rows[row]).start, MARGIN.left - 5, top(row) + cell / 2);
  pen.textAlign = "left";
  pen.fillText(span(b, map.columns[0]).start, left(0), top(rows) + 10);
  if (columns * cell > 60) {
    pen.textAlign = "right";
    pen.fillText(span(b, map.columns[columns - 1]).start, left(columns), top(rows) + 10);
  }
  pen.textAlign = "left";
  pen.fillText(acrossWords(), left(0), top(rows) + 25);
  pen.save();
  pen.translate(10, top(0));
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "right";
  if (rows * cell > 70) pen.fillText(`rollout ${a.sample} ←`, -20, 0);
  pen.restore();
}

function moveCursor(row, column) {
  const {map, a, b} = heat;
  heat.row = Math.max(0, Math.min(map.rows.length - 1, row));
  heat.column = Math.max(0, Math.min(map.columns.length - 1, column));
  const words = (rollout, k) => `rollout ${rollout.sample} tokens ${span(rollout, k).start} to ${span(rollout, k).end - 1}`;
  $("heat-value").textContent = `${digits(map.value(heat.row, heat.column))}: ${words(a, map.rows[heat.row])}, ` +
    words(b, map.columns[heat.column]);
  drawHeat();
}

function selectCell() {
  const {a, b, map, row, column} = heat;
  selectSpans({rollout: a, k: map.rows[row]}, {rollout: b, k: map.columns[column]}, map.value(row, column), "other",
    "a cell of the heatmap");
}

// Shows the pair of a selection, with the cursor on its cell where the heatmap has it.
function followPair({a, b}) {
  showPair(a.rollout, b.rollout);
  const row = heat?.map.rows.indexOf(a.k) ?? -1, column = heat?.map.columns.indexOf(b.k) ?? -1;
  if (row >= 0 && column >= 0) moveCursor(row, column);
}

function cellAt(event) {
  const box = $("heat").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - MARGIN.left) / heat.cell);
  const row = Math.floor((event.clientY - box.top - MARGIN.top) / heat.cell);
  return row >= 0 && column >= 0 && row < heat.map.rows.length && column < heat.map.columns.length ? [row, column] : null;
}

function startHeatmap() {
  const canvas = $("heat"), byValue = id => samples(current.group).get(Number($(id).value));
  for (const id of ["heat-a", "heat-b"]) $(id).addEventListener("change", () => showPair(byValue("heat-a"), byValue("heat-b")));
  canvas.addEventListener("pointermove", event => { const cell = cellAt(event); if (cell) moveCursor(...cell); });
  canvas.addEventListener("click", event => { const cell = cellAt(event); if (cell) { moveCursor(...cell); selectCell(); } });
  canvas.addEventListener("focus", () => moveCursor(heat.row, heat.column));
  canvas.addEventListener("keydown", event => {
    const by = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (by) { event.preventDefault(); moveCursor(heat.row + by[0], heat.column + by[1]); }
    if (event.key === "Enter") selectCell();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawHeat(); drawProfiles(); });
  new ResizeObserver(drawHeat).observe($("heat-box"));
}
