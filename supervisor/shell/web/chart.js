// A line over time, as SVG at the size that it has on the screen.
const NS = "http://www.w3.org/2000/svg";
const LEFT = 46, RIGHT = 8, TOP = 18, BOTTOM = 18;

function add(parent, name, attributes, words) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  parent.append(made);
  return made;
}

// points: [[x, y], ...] with x in seconds; marks: [[x, word], ...]; tell(y) and clock(x) give words; floor: lowest y, if it is known.
export function draw(svg, points, marks, tell, clock, floor) {
  const width = svg.clientWidth, height = svg.clientHeight;
  svg.replaceChildren();
  if (!width || !height) return;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  if (points.length < 2) {
    add(svg, "text", { x: LEFT, y: height / 2 }, "not two steps were seen yet");
    return;
  }
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  const sorted = points.map((p) => p[1]).sort((a, b) => a - b);
  // one step that took a minute would flatten all others: it leaves the picture at its top
  const usual = sorted[Math.floor(sorted.length * 0.98)];
  const low = floor ?? sorted[0], high = Math.max(Math.min(sorted[sorted.length - 1], low + 3 * (usual - low)), low + (Math.abs(low) * 0.02 || 1e-3));
  const x = (t) => LEFT + (width - LEFT - RIGHT) * (t - first) / Math.max(last - first, 1e-9);
  const y = (v) => TOP + (height - TOP - BOTTOM) * (1 - (Math.min(v, high) - low) / (high - low));
  for (const v of [low, (low + high) / 2, high]) {
    add(svg, "line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) });
    add(svg, "text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, tell(v));
  }
  add(svg, "text", { x: LEFT, y: height - 3 }, clock(first));
  add(svg, "text", { x: width - RIGHT, y: height - 3, "text-anchor": "end" }, clock(last));
  let written = -99;
  for (const [t, word] of marks.filter((m) => m[0] >= first && m[0] <= last).sort((a, b) => a[0] - b[0])) {
    add(svg, "line", { class: "mark", x1: x(t), x2: x(t), y1: TOP - 4, y2: height - BOTTOM });
    if (x(t) - written < 22) continue;
    written = x(t);
    add(svg, "text", { class: "mark-text", x: Math.min(x(t), width - RIGHT - 8), y: 11, "text-anchor": "middle" }, word);
  }
  add(svg, "polyline", { class: "line", points: points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") });
  const end = points[points.length - 1];
  add(svg, "circle", { class: "dot", cx: x(end[0]), cy: y(end[1]), r: 3 });
}
