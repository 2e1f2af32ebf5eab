// The group at a glance: a strip for each rollout, its shading from the first token to the last; a click goes there.
const STRIP = {width: 600, height: 14};  // of the canvas; CSS stretches it

function showProfiles() {
  const {group, range} = current, longest = Math.max(...group.rollouts.map(rollout => rollout.length));
  $("profiles").hidden = !range;
  $("strips").replaceChildren(...(range ? group.rollouts : []).filter(rollout => rollout.length).map(rollout => {
    const canvas = make("canvas", STRIP), room = make("span", {className: "strip"}, canvas);
    canvas.style.width = `${100 * rollout.length / longest}%`;
    canvas.rollout = rollout;
    const button = make("button", {type: "button"},
      make("span", {className: "mono small"}, `${rollout.sample} ${NAMES[rollout.correct][0]}`), room);
    button.setAttribute("aria-label", `Rollout ${rollout.sample}, ${NAMES[rollout.correct]}: go to its response`);
    button.addEventListener("click", event => {
      const box = canvas.getBoundingClientRect(), part = (event.clientX - box.left) / box.width;
      openRow(rowOf(rollout));
      focusToken(rollout, event.detail ? Math.max(0, Math.min(rollout.length - 1, Math.floor(part * rollout.length))) : 0);
    });
    return button;
  }));
  drawProfiles();
}

function drawProfiles() {
  for (const canvas of $("strips").querySelectorAll("canvas")) {
    const {rollout} = canvas, pen = canvas.getContext("2d"), style = getComputedStyle(canvas), wide = STRIP.width / rollout.length;
    for (let i = 0; i < rollout.length; i++) {
      pen.fillStyle = rollout.shades ? style.getPropertyValue(`--w${level(rollout.shades[i], current.range)}`) : style.getPropertyValue("--band");
      pen.fillRect(Math.floor(i * wide), 0, Math.ceil(wide) + 1, STRIP.height);
    }
    if (rollout.error === null) continue;
    pen.fillStyle = style.getPropertyValue("--error");
    pen.fillRect(Math.min(rollout.error * wide, STRIP.width - 6), 0, 6, STRIP.height);
  }
}
