const view = {from: 0, zoom: 1, sort: 2, selected: -1};
const $ = id => document.getElementById(id);
const MOST_ROWS = 500, ROW = 18, LABEL = 240;
const COLORS = ["#0b6bcb", "#c2410c", "#15803d", "#7c3aed", "#b45309", "#be185d", "#0f766e", "#6b7280"];
function made(tag, text, more = {}) {
  const node = Object.assign(document.createElement(tag), more);
  if (text !== undefined) node.textContent = text;
  return node;
}
function read(data) {
  const text = n => data.texts[n];
  view.length = Math.max(1, data.length);
  view.rows = data.rows.map(([name, address, thread, time, held, waited, shared, released, position, where, released_where, within, how], number) => ({
    number, name: text(name), address, thread: text(thread), time, held, waited, shared, released,
    position, where: text(where), released_where: text(released_where), within: within.map(text), how}));
  const classes = new Map();
  for (const one of view.rows) {
    const found = classes.get(one.name) || {name: one.name, taken: 0, held: 0, longest: 0, waited: 0, rows: []};
    found.taken += one.position >= 0 && !(one.how & 1); found.held += one.held; found.waited += one.waited;
    found.longest = Math.max(found.longest, one.held); found.rows.push(one);
    classes.set(one.name, found);
  }
  view.classes = [...classes.values()].sort((a, b) => b.held - a.held);
  const busy = new Map();
  for (const one of view.rows) busy.set(one.thread, (busy.get(one.thread) || 0) + 1);
  view.threads = [...busy.keys()].sort((a, b) => busy.get(b) - busy.get(a));
}
const color = thread => COLORS[Math.min(view.threads.indexOf(thread), COLORS.length - 1)];
const mode = one => [one.shared ? "shared" : "", one.how & 1 ? (one.how & 2 ? "handed over" : one.shared ? "downgraded" : "upgraded") : ""].filter(Boolean).join(", ");
function span() {
  const width = view.length / view.zoom, start = Math.min(view.from, view.length - width);
  return [start, width];
}
function draw() {
  const canvas = $("line"), rows = view.classes.slice(0, 60), scale = window.devicePixelRatio || 1;
  const wide = canvas.clientWidth, label = Math.min(LABEL, wide * .35);
  canvas.style.height = `${rows.length * ROW + 20}px`;
  canvas.width = wide * scale; canvas.height = (rows.length * ROW + 20) * scale;
  const paint = canvas.getContext("2d"), style = getComputedStyle(document.body);
  paint.scale(scale, scale);
  paint.font = "12px ui-monospace, monospace"; paint.textBaseline = "middle";
  const [start, width] = span(), x = time => label + (time - start) / width * (wide - label);
  view.boxes = [];
  rows.forEach((found, at) => {
    const y = at * ROW;
    paint.fillStyle = style.color;
    paint.save(); paint.beginPath(); paint.rect(0, y, label - 8, ROW); paint.clip();
    paint.fillText(found.name, 4, y + ROW / 2); paint.restore();
    paint.globalAlpha = .15; paint.fillRect(label, y + ROW - 1, wide - label, 1); paint.globalAlpha = 1;
    paint.save(); paint.beginPath(); paint.rect(label, y, wide - label, ROW); paint.clip();
    for (const one of found.rows) {
      if (one.time + one.held < start || one.time - one.waited > start + width) continue;
      const left = x(one.time), size = Math.max(1.5, x(one.time + one.held) - left);
      paint.fillStyle = color(one.thread);
      if (one.waited) { paint.globalAlpha = .35; paint.fillRect(x(one.time - one.waited), y + 6, left - x(one.time - one.waited), ROW - 10); paint.globalAlpha = 1; }
      paint.fillRect(left, y + 3, size, ROW - 6);
      if (one.number === view.selected) { paint.strokeStyle = style.color; paint.lineWidth = 2; paint.strokeRect(left - 1, y + 2, size + 2, ROW - 4); }
      view.boxes.push([left, left + size, y, y + ROW, one]);
    }
    paint.restore();
  });
  paint.fillStyle = style.color;
  paint.fillText(`${Math.round(start)} ns`, label, rows.length * ROW + 10);
  const end = `${Math.round(start + width)} ns`;
  paint.fillText(end, wide - paint.measureText(end).width - 4, rows.length * ROW + 10);
  $("part").textContent = `${Math.round(start)} to ${Math.round(start + width)} ns`;
  $("from").value = Math.round(1000 * start / view.length);
  $("threads").replaceChildren(...view.threads.slice(0, COLORS.length).flatMap((thread, n) => {
    const mark = made("span", "■ "); mark.style.color = COLORS[n];
    return [mark, (n === COLORS.length - 1 && view.threads.length > COLORS.length ? "others" : thread) + "   "];
  }));
}
function select(one) {
  view.selected = one.number;
  const lines = [`${one.name} ${one.address}${mode(one) ? `, ${mode(one)}` : ""}: ${one.thread}`,
    `acquired ${one.position < 0 ? "before the window" : `at ${one.where}, ${one.time} ns, instruction ${one.position}`}`
      + (one.waited ? `, after waiting for ${one.waited} ns` : ""),
    one.released ? `held for ${one.held} ns, released at ${one.released_where || "?"}` : `held for ${one.held} ns, until the end of the window`,
    one.within.length ? `while holding ${one.within.join(", ")}` : "while holding no other lock"];
  $("chosen").replaceChildren(...lines.map(line => made("p", line)));
  const [start, width] = span();
  if (one.time + one.held < start || one.time > start + width) view.from = Math.max(0, one.time - width / 2);
  draw();
}
const HEADS = [["Class", c => c.name], ["Taken", c => -c.taken], ["Held ns", c => -c.held], ["Longest ns", c => -c.longest], ["Waited ns", c => -c.waited]];
function classes() {
  const key = HEADS[view.sort][1];
  const rows = [...view.classes].sort((a, b) => key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
  $("classes").replaceChildren(...rows.map(found => {
    const row = made("tr"), name = made("td", undefined, {className: "text"});
    const button = made("button", found.name, {type: "button"});
    button.addEventListener("click", () => { $("filter").value = found.name; list(); });
    name.append(button);
    row.append(name, ...[found.taken, found.held, found.longest, found.waited].map(n => made("td", n, {className: "n"})));
    return row;
  }));
}
function list() {
  const wanted = $("filter").value.trim().toLowerCase();
  const rows = view.rows.filter(one => !wanted || [one.name, one.address, one.thread, one.where].some(text => text.toLowerCase().includes(wanted)));
  $("found").textContent = rows.length > MOST_ROWS ? `the first ${MOST_ROWS} of ${rows.length}` : `${rows.length}`;
  $("rows").replaceChildren(...rows.slice(0, MOST_ROWS).map(one => {
    const row = made("tr"), lock = made("td");
    const button = made("button", `${" ".repeat(2 * one.within.length)}${one.name} ${one.address}${mode(one) ? ` ${mode(one)}` : ""}`, {type: "button"});
    button.style.whiteSpace = "pre";
    button.addEventListener("click", () => select(one));
    lock.append(button);
    row.append(made("td", one.time, {className: "n"}), made("td", one.thread), lock, made("td", one.held, {className: "n"}),
      made("td", one.waited || "", {className: "n"}), made("td", one.position < 0 ? "before the window" : one.where));
    return row;
  }));
}
function zoom(by) {
  const [start, width] = span(), one = view.rows[view.selected];
  const middle = one ? one.time + one.held / 2 : start + width / 2;
  view.zoom = Math.max(1, Math.min(view.length / 10, view.zoom * by));
  view.from = Math.max(0, middle - view.length / view.zoom / 2);
  draw();
}
(async function () {
  read(await unpackJson("data"));
  $("heads").append(...HEADS.map(([head], at) => {
    const cell = made("th", undefined, {scope: "col"}), button = made("button", head, {type: "button"});
    button.setAttribute("aria-pressed", at === view.sort);
    button.addEventListener("click", () => {
      view.sort = at; classes();
      for (const other of document.querySelectorAll("#heads button")) other.setAttribute("aria-pressed", other === button);
    });
    cell.append(button);
    return cell;
  }));
  $("loading").hidden = true; $("all").hidden = false;
  classes(); list(); draw();
  $("in").addEventListener("click", () => zoom(4));
  $("outer").addEventListener("click", () => zoom(1 / 4));
  $("whole").addEventListener("click", () => { view.zoom = 1; view.from = 0; draw(); });
  $("from").addEventListener("input", () => { view.from = view.length * $("from").value / 1000; draw(); });
  $("filter").addEventListener("input", list);
  $("line").addEventListener("click", event => {
    const hit = view.boxes.filter(([left, right, top, bottom]) => event.offsetX >= left - 3 && event.offsetX <= right + 3
      && event.offsetY >= top && event.offsetY < bottom).sort((a, b) => (a[1] - a[0]) - (b[1] - b[0]))[0];
    if (hit) select(hit[4]);
  });
  window.addEventListener("resize", draw);
  view.ready = true;
})();
