// The page: panels that show one moment.
const $ = id => document.getElementById(id);
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
const ROW = 22;
// A list of rows of the same height, of which only the visible ones exist.
class LongList {
  constructor(box, draw) {
    this.box = box; this.draw = draw; this.rows = [];
    this.space = element("div"); this.space.setAttribute("role", "presentation");
    box.append(this.space); box.addEventListener("scroll", () => this.show());
    new ResizeObserver(() => this.show()).observe(box);
  }
  set(rows) { this.rows = rows; this.space.style.height = rows.length * ROW + "px"; this.show(true); }
  show() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 4);
    const end = Math.min(this.rows.length, first + Math.ceil(this.box.clientHeight / ROW) + 8), made = [];
    for (let i = first; i < end; i++) {
      const row = this.draw(this.rows[i], i);
      row.classList.add("row"); row.style.top = i * ROW + "px"; row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(row.classList.contains("now")));
      row.setAttribute("aria-setsize", this.rows.length); row.setAttribute("aria-posinset", i + 1);
      made.push(row);
    }
    this.space.replaceChildren(...made);
  }
  reveal(i) {
    const top = i * ROW, height = this.box.clientHeight;
    if (top < this.box.scrollTop + ROW || top > this.box.scrollTop + height - 2 * ROW)
      this.box.scrollTop = Math.max(0, top - height / 3);
    this.show();
  }
}
function nanoseconds(n) { return n < 10000 ? n + " ns" : n < 1e7 ? (n / 1e3).toFixed(1) + " us" : (n / 1e6).toFixed(2) + " ms"; }
class View {
  constructor(path) {
    this.path = path; this.t = 0; this.selected = 0; this.open = new Set(); this.unfolded = new Set();
    this.folded = new Set(); this.zoom = [0, path.count]; this.source = path.source.length > 0; this.code = null;
    this.tree = new LongList($("tree"), row => this.treeRow(row));
    this.listing = new LongList($("code"), row => this.codeRow(row));
    $("moment").max = path.count;
    for (const id of ["show-source", "show-code"]) $(id).hidden = !this.source;
    this.wire(); this.drawFlame();
    const wanted = /^#t=(\d+)$/.exec(location.hash);
    this.go(wanted ? Math.min(+wanted[1], path.count) : 0);
  }
  wire() {
    const path = this.path;
    $("moment").addEventListener("input", () => this.go(+$("moment").value));
    const moves = {"back": () => this.t - 1, "forward": () => this.t + 1, "step": () => this.step(1), "step-back": () => this.step(-1),
      "next": () => this.next(1), "next-back": () => this.next(-1), "out": () => this.out(1), "out-back": () => this.out(-1),
      "visit": () => this.visit(1), "visit-back": () => this.visit(-1)};
    for (const [id, move] of Object.entries(moves)) $(id).addEventListener("click", () => this.go(move()));
    const keys = {ArrowLeft: "back", ArrowRight: "forward", s: "step", S: "step-back", n: "next", N: "next-back",
      o: "out", O: "out-back", v: "visit", V: "visit-back"};
    document.addEventListener("keydown", event => {
      if (event.target.matches("input[type=search]") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") { event.preventDefault(); $("search").focus(); return; }
      if (event.target === $("moment") && event.key.startsWith("Arrow")) return;
      if (event.key === "Home" && event.target === document.body) { this.go(0); return; }
      if (event.key === "End" && event.target === document.body) { this.go(path.count); return; }
      if (keys[event.key]) { event.preventDefault(); $(keys[event.key]).click(); }
    });
    const canvas = $("flame"); let dragging = false;
    const to = event => {
      const box = canvas.getBoundingClientRect(), [a, b] = this.zoom;
      this.go(Math.round(a + (event.clientX - box.left) / box.width * (b - a)));
    };
    canvas.addEventListener("pointerdown", event => { dragging = true; canvas.setPointerCapture(event.pointerId); to(event); });
    canvas.addEventListener("pointermove", event => dragging && to(event));
    canvas.addEventListener("pointerup", () => dragging = false);
    $("zoom-in").addEventListener("click", () => this.zoomBy(.5));
    $("zoom-out").addEventListener("click", () => this.zoomBy(2));
    new ResizeObserver(() => { this.drawFlame(); this.later(); }).observe(canvas);
    $("search").addEventListener("input", () => this.search());
    $("search").addEventListener("keydown", event => event.key === "Escape" && ($("search").value = "", this.search()));
    for (const [id, source] of [["show-source", true], ["show-code", false]]) $(id).addEventListener("click", () => {
      this.source = source; this.code = null;
      $("show-source").setAttribute("aria-pressed", source); $("show-code").setAttribute("aria-pressed", !source); this.later();
    });
  }
  go(t) {
    this.t = Math.max(0, Math.min(this.path.count, t)); this.selected = 0;
    this.later();
  }
  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.render(); });
    clearTimeout(this.saving);
    this.saving = setTimeout(() => history.replaceState(null, "", "#t=" + this.t), 400);
  }
  // -- steps: each returns a moment
  frame(t = this.t) { return this.path.frames[this.path.frameAt[t]]; }
  within(frame, around) { while (frame && frame !== around) frame = this.path.frames[frame.parent]; return Boolean(frame); }
  step(way) {
    const {visits} = this.path, at = last(visits, way > 0 ? this.t : this.t - 1) + (way > 0 ? 1 : 0);
    return at < 0 ? 0 : at < visits.length ? visits[at] : this.path.count;
  }
  next(way) {
    const {visits, lineAt, count} = this.path, here = this.frame(), line = lineAt[this.t];
    for (let at = last(visits, way > 0 ? this.t : this.t - 1) + (way > 0 ? 1 : 0); at >= 0 && at < visits.length; at += way) {
      const t = visits[at], there = this.frame(t);
      if (there === here ? lineAt[t] !== line : !this.within(there, here)) return t;
    }
    return way > 0 ? count : 0;
  }
  out(way) { const frame = this.frame(); return !frame ? this.t : way > 0 ? frame.end : Math.max(0, frame.begin - 1); }
  visit(way) {
    const {visits, lineAt} = this.path, line = lineAt[this.t];
    const start = last(visits, this.t);
    for (let at = start + way; at >= 0 && at < visits.length; at += way)
      if (lineAt[visits[at]] === line && line) return visits[at];
    return this.t;
  }
  // -- the moment
  render() {
    const path = this.path, t = this.t, frame = this.frame();
    $("moment").value = t;
    $("moment").setAttribute("aria-valuetext", `${t} of ${path.count}, ${frame ? frame.name : ""}`);
    $("when").textContent = `Moment ${t} of ${path.count} · instruction ${path.position(t)} · +${nanoseconds(path.time(t) - path.time(0))} ·`;
    $("place").textContent = `${frame ? frame.name : "?"} ${path.lineText(path.lineAt[t])}`;
    $("instruction").textContent = t < path.count ? this.instruction(path.pc(t)) : "end of the path";
    this.drawCursor(); this.renderTree(); this.renderCode(); this.renderValues();
  }
  instruction(pc) {
    const [name, first] = this.path.functions[this.path.functionOf[pc]];
    return `${name}+${hex(BigInt("0x" + this.path.addresses[pc]) - BigInt("0x" + this.path.addresses[first]))}  ${this.path.texts[pc]}`;
  }
  // -- timeline
  drawFlame() {
    const canvas = $("flame"), scale = devicePixelRatio || 1, path = this.path;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale)); canvas.height = Math.round((canvas.clientHeight || 120) * scale);
    const picture = this.flame = element("canvas", {width: canvas.width, height: canvas.height}), draw = picture.getContext("2d");
    const [a, b] = this.zoom, width = canvas.width, height = canvas.height - 4, row = height / path.depth, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    for (const frame of path.frames) {
      if (frame.end <= a || frame.begin >= b) continue;
      const x = (frame.begin - a) / (b - a) * width, w = Math.max(.5, (frame.end - frame.begin) / (b - a) * width);
      let hash = 0; for (const c of frame.name) hash = (hash * 31 + c.charCodeAt(0)) % 360;
      draw.fillStyle = frame.how === "interrupt" ? (dark ? "#ff7b72" : "#b3001b") : `hsl(${hash} 45% ${dark ? 45 : 65}%)`;
      draw.fillRect(x, height - (frame.depth + 1) * row, w, Math.max(1, row - .5));
    }
    draw.fillStyle = dark ? "#fff" : "#000";
    for (let r = 1; r < path.runs[0].length; r++) {
      const x = (path.runs[0][r] - a) / (b - a) * width;
      if (x >= 0 && x <= width) draw.fillRect(x, 0, 1, canvas.height);
    }
    this.drawCursor();
  }
  drawCursor() {
    const canvas = $("flame"), draw = canvas.getContext("2d"), [a, b] = this.zoom;
    draw.clearRect(0, 0, canvas.width, canvas.height); draw.drawImage(this.flame, 0, 0);
    draw.fillStyle = getComputedStyle(document.body).color;
    draw.fillRect((this.t - a) / (b - a) * canvas.width - 1, 0, 3, canvas.height);
  }
  zoomBy(factor) {
    const {count} = this.path, [a, b] = this.zoom, width = Math.max(20, Math.min(count, (b - a) * factor));
    const begin = Math.max(0, Math.min(count - width, this.t - width / 2));
    this.zoom = [begin, begin + width]; this.drawFlame();
  }
  // -- calls
  renderTree() {
    const rows = [], current = this.frame(), around = new Set();
    for (let f = current; f; f = this.path.frames[f.parent]) around.add(f);
    const add = (frames, depth) => {
      for (let i = 0; i < frames.length;) {
        let end = i + 1;
        while (end < frames.length && frames[end].name === frames[i].name) end++;
        const group = frames.slice(i, end), key = "g" + frames[i].number;
        if (group.length > 2 && !this.unfolded.has(key) && !group.some(f => around.has(f))) rows.push({group, depth, key});
        else for (const frame of group) {
          rows.push({frame, depth});
          if (this.opened(frame, around)) add(frame.below, depth + 1);
        }
        i = end;
      }
    };
    add(this.path.roots, 0);
    this.around = around;
    this.tree.set(rows);
    const at = rows.findIndex(row => row.frame === current);
    if (at >= 0) this.tree.reveal(at);
  }
  opened(frame, around) {
    const key = "f" + frame.number;
    return frame.below.length && !this.folded.has(key) && (this.unfolded.has(key) || around.has(frame) || frame.depth < this.path.outer + 1);
  }
  treeRow(row) {
    const frame = row.frame || row.group[0], frames = row.group || [frame], path = this.path;
    const total = frames.reduce((sum, f) => sum + path.time(f.end) - path.time(f.begin), 0);
    const key = row.key || "f" + frame.number, isOpen = row.frame && this.opened(frame, this.around);
    const fold = element("span", {className: "fold", textContent: row.group || frame.below.length ? (isOpen ? "▾" : "▸") : ""});
    const name = frame.name + (row.group ? ` ×${frames.length}` : "") + (frame.how === "interrupt" ? " (exception)" : "");
    const made = element("div", {title: `${name}: ${nanoseconds(total)}, ${frames.reduce((s, f) => s + f.own, 0)} instructions of its own`},
      element("span", {className: "n", textContent: nanoseconds(total)}), element("span", {textContent: " ".repeat(row.depth)}), fold, element("span", {textContent: name}));
    if (frame.how === "inline") made.classList.add("inline");
    if (row.frame === this.frame()) made.classList.add("now");
    fold.addEventListener("click", event => {
      event.stopPropagation();
      if (isOpen) { this.folded.add(key); this.unfolded.delete(key); } else { this.unfolded.add(key); this.folded.delete(key); }
      this.renderTree();
    });
    made.addEventListener("click", () => this.go(frame.begin));
    return made;
  }
  // -- code
  renderCode() {
    const path = this.path, pc = path.pc(this.t), number = path.functionOf[pc], [name, first, length] = path.functions[number];
    const place = path.places[path.lineAt[this.t]], run = this.source && path.lineAt[this.t] ? this.sourceOf(place) : null;
    const key = run ? "s" + run.index : "c" + number;
    if (this.code !== key) {
      this.code = key; this.codeRows = [];
      if (run) {
        const [file, begin, lines] = path.source[run.index];
        this.codeRows = lines.map((text, i) => ({text, file, line: begin + i}));
        $("function").textContent = path.files[file].replace(/^(\.\.?\/)+/, "");
      } else {
        let line = -1;
        for (let i = first; i < first + length; i++) {
          if (path.lines[i] && path.lines[i] !== line) { line = path.lines[i]; this.codeRows.push({heading: line}); }
          this.codeRows.push({pc: i});
        }
        $("function").textContent = name + "()";
      }
      this.linesByPlace = this.linesByPlace || new Map(path.places.map(([file, line], i) => [file + ":" + line, i]));
      this.listing.set(this.codeRows);
    }
    const at = run ? place[1] - path.source[run.index][1] : this.codeRows.findIndex(row => row.pc === pc);
    this.listing.reveal(Math.max(0, at));
  }
  sourceOf([file, line]) {
    const index = this.path.source.findIndex(([f, begin, lines]) => f === file && begin <= line && line < begin + lines.length);
    return index < 0 ? null : {index};
  }
  codeRow(row) {
    const path = this.path, made = element("div");
    if (row.pc === undefined) {
      const place = row.heading !== undefined ? row.heading : this.linesByPlace.get(row.file + ":" + row.line);
      const count = path.visitCount.get(place) || 0;
      made.append(element("span", {className: "n", textContent: count ? "×" + count : ""}),
        element("span", {textContent: row.heading !== undefined ? path.lineText(row.heading) : `${row.line}`.padStart(5) + "  " + row.text}));
      if (row.heading !== undefined) made.classList.add("heading");
      else if (path.lineAt[this.t] === place && place) made.classList.add("now");
      if (!count) made.classList.add("never");
      if (count) made.addEventListener("click", () => this.goVisit(place));
      return made;
    }
    const count = path.executed[row.pc], taken = path.taken.get(row.pc);
    made.append(element("span", {className: "n", textContent: count ? count : "–"}),
      element("span", {textContent: this.instruction(row.pc).replace(/^.*?\+/, "+") + (taken ? `   ⟵ jumps ${taken[0]}, not ${taken[1]}` : "")}));
    if (row.pc === path.pc(this.t)) made.classList.add("now");
    if (!count) made.classList.add("never"); else made.addEventListener("click", () => this.goExecution(row.pc));
    return made;
  }
  goVisit(place) {  // the next visit of a line, or its first
    const {visits, lineAt} = this.path, later = visits.find(t => t > this.t && lineAt[t] === place);
    this.go(later !== undefined ? later : visits.find(t => lineAt[t] === place));
  }
  goExecution(pc) { const later = this.path.pcs.indexOf(pc, this.t + 1); this.go(later >= 0 ? later : this.path.pcs.indexOf(pc)); }
  // -- values
  // The function whose code a frame is part of.
  physical(frame) {
    while (frame && frame.how === "inline" && this.path.frames[frame.parent]) frame = this.path.frames[frame.parent];
    return frame;
  }
  // The frame that was called when a chain of tail calls led to this one.
  called(frame) {
    const {frames, roots} = this.path;
    while (frame.how === "tail call") {
      const siblings = frames[frame.parent] ? frames[frame.parent].below : roots;
      const before = siblings.filter(f => f.number < frame.number && f.end === frame.begin && f.how !== "inline").pop();
      if (!before) break;
      frame = before;
    }
    return frame;
  }
  // The stack: functions with the moment at which each stands, innermost first.
  stack() {
    const path = this.path, views = []; let moment = this.t, interrupted = false, frame = this.frame(), back = 0;
    while (frame) {
      const outer = this.physical(frame), first = this.called(outer);
      const view = new FrameView(path, outer, this.t, Math.max(0, moment), interrupted);
      if (interrupted && back < path.count && this.physical(this.frame(back)) === outer) view.pc = path.pc(back);
      else if (interrupted) moment = -1;  // where it was interrupted is not known
      // What a function held that was entered before the path begins is known only for the last of them.
      view.before = moment < 0 || views.length > 0 && !interrupted && this.physical(this.frame(moment)) !== outer;
      views.push(view);
      interrupted = first.how === "interrupt"; back = first.end;
      moment = first.number < path.outer ? -1 : interrupted ? first.begin : first.begin - 1;
      frame = path.frames[outer.parent];
    }
    return views;
  }
  renderValues() {
    const path = this.path, views = this.stack();
    this.selected = Math.min(this.selected, Math.max(0, views.length - 1));
    $("stack").replaceChildren(...views.map((view, i) => {
      const before = view.before, scope = path.scopeOf[view.pc], names = !before && scope >= 0 ? path.scopes[scope].map(s => s[0] + (s[1] ? " [inlined]" : "")).join(" in ") : "";
      const line = view.interrupted ? path.lines[view.pc] : path.lineAt[view.moment];
      const button = element("button", {type: "button", textContent: (names || view.frame.name) + (!before ? ` ${path.lineText(line)}` : view.interrupted ? " (interrupted)" : " (entered before the path)")});
      if (i === this.selected) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => { this.selected = i; this.renderValues(); });
      return element("li", {}, button);
    }));
    this.renderLocks();
    const view = views[this.selected], made = [];
    if (!view || view.before) made.push(element("p", {textContent: "The values of this function are not in the page: it was entered before the path begins, or interrupted to its end."}));
    else {
      const scope = path.scopeOf[view.pc];
      for (const [name, inlined, variables] of scope >= 0 ? path.scopes[scope] : []) {
        made.push(element("p", {}, element("strong", {textContent: name + (inlined ? " [inlined]" : "")})));
        const seen = new Set();
        for (const variable of variables) {
          if (seen.has(variable[0])) continue;
          seen.add(variable[0]);
          let value; try { value = view.variable(variable); } catch (error) { if (!(error instanceof Unknown)) throw error; value = error; }
          made.push(...this.line(variable[0], variable[1], value, `${name}.${variable[0]}`, 0, view));
        }
        if (!variables.length) made.push(element("p", {textContent: "(no variables)"}));
      }
      if (scope < 0) made.push(element("p", {textContent: "The debug data names no variables here."}));
    }
    $("variables").replaceChildren(...made);
    $("registers").replaceChildren(...(view && !view.before ? path.registers : []).map((name, r) => {
      let value; try { value = view.register(r); } catch (error) { if (!(error instanceof Unknown)) throw error; value = error; }
      const known = !(value instanceof Unknown);
      const button = element("button", {type: "button", textContent: known ? hex(value) : value.message, className: known ? "" : "unknown"});
      if (view.moment === this.t && this.t && known && path.register(r, this.t - 1) !== value) button.classList.add("changed");
      if (known) button.addEventListener("click", () => this.explain(name, {register: r}, view.moment));
      return element("div", {className: "line"}, element("code", {textContent: name}), button);
    }));
  }
  // The locks that the thread holds, the oldest first.
  renderLocks() {
    const path = this.path, held = (path.locks || []).filter(lock => lock.begin < this.t && this.t <= lock.end);
    $("held").hidden = !path.locks;
    $("locks").replaceChildren(...(held.length ? held.map(lock => element("li", {}, ...this.lockParts(lock))) : [element("li", {textContent: "none"})]));
  }
  lockParts(lock) {
    const path = this.path, jump = (text, t) => {
      const button = element("button", {type: "button", textContent: text});
      button.addEventListener("click", () => this.go(t));
      return button;
    };
    return [`${lock.name} ${lock.address === null ? "at an unknown address" : hex(lock.address)}${lock.shared ? " shared" : ""}, `,
      lock.begin < 0 ? "since before the path" : jump(`since moment ${lock.begin}: ${lock.where}`, lock.begin), ", ",
      lock.end >= path.count ? "to the end" : jump(`to moment ${lock.end}`, lock.end)];
  }
  line(name, type, value, key, depth, view) {
    const path = this.path, rows = [], row = element("div", {className: "line"});
    row.style.paddingLeft = depth + "rem";
    const declared = type >= 0 ? path.types[type][1] : "";
    if (value instanceof Unknown) {
      row.append(element("span", {className: "gap"}), element("code", {textContent: name, title: declared}), element("span", {className: "unknown", textContent: value.message}));
      return [row];
    }
    const kind = type >= 0 ? path.types[type][0] : "", isNull = kind === "p" && !number(value.bytes);
    const opens = (kind === "s" || kind === "a" && !isText(path, path.types[type][3]) || kind === "p" && !isNull && path.types[type][3] >= 0 && typeSize(path, path.types[type][3]) > 0) && depth < 8;
    const isOpen = opens && this.open.has(key);
    if (opens) {
      const fold = element("button", {type: "button", className: "fold", textContent: isOpen ? "▾" : "▸"});
      fold.setAttribute("aria-expanded", String(isOpen)); fold.setAttribute("aria-label", `${isOpen ? "Close" : "Open"} ${name}`);
      fold.addEventListener("click", () => { if (isOpen) this.open.delete(key); else this.open.add(key); this.renderValues(); });
      row.append(fold);
    } else row.append(element("span", {className: "gap"}));
    const text = show(path, type, value.bytes, this.t);
    const button = element("button", {type: "button", textContent: text, className: value.source && value.source.address !== undefined ? (value.use ? "used" : "unused") : ""});
    const target = kind === "p" && !isNull ? number(value.bytes) : value.source && value.source.address;
    button.addEventListener("click", () => this.explain(name, value.source, view.moment, target));
    row.append(element("code", {textContent: name, title: declared}), button);
    rows.push(row);
    if (isOpen) for (const [part, partType, partValue] of parts(path, type, value.bytes, value.source, this.t)) {
      if (part === "*" && !(partValue instanceof Unknown) && partType >= 0 && path.types[partType][0] === "s")
        for (const [member, memberType, memberValue] of parts(path, partType, partValue.bytes, partValue.source, this.t))
          rows.push(...this.line(member || "(unnamed)", memberType, memberValue, `${key}->${member}`, depth + 1, view));
      else rows.push(...this.line(part || "(unnamed)", partType, partValue, `${key}.${part}`, depth + 1, view));
    }
    return rows;
  }
  // Where a value was made, and who uses it next.
  explain(name, source, moment, target) {
    const path = this.path, box = $("origin"), made = [element("p", {}, element("strong", {textContent: name}))];
    const link = (text, t) => {
      const button = element("button", {type: "button", textContent: `moment ${t}: ${this.instruction(path.pc(t))} ${path.lineText(path.lineAt[t])}`});
      button.addEventListener("click", () => this.go(t));
      made.push(element("p", {}, text + " ", button));
    };
    const say = text => made.push(element("p", {textContent: text}));
    if (!source) say("The debug data computes this value; it is in no single place.");
    else if (source.register !== undefined) {
      const moments = path.changeMoments[source.register], i = last(moments, moment);
      if (i < 0) say(`In ${path.registers[source.register]} since before the path begins.`);
      else if (path.isTaken(moments[i]) && !path.mentions(path.pc(Math.max(0, moments[i] - 1)), source.register))
        link(`In ${path.registers[source.register]}, set by the exception that was taken before`, moments[i]);
      else link(`In ${path.registers[source.register]}, set by`, Math.max(0, moments[i] - 1));
      let t = moment; while (t < path.count && !path.mentions(path.pc(t), source.register)) t++;
      if (t < path.count) link("Next used or overwritten by", t); else say("Not used again on the path.");
    } else {
      const stored = path.storeBefore(source.address, source.size, this.t), read = path.loadAfter(source.address, source.size, this.t);
      say(`In memory at ${hex(source.address)}.`);
      const [at, who] = stored;
      if (at < 0) say("Stored before the path begins.");
      else if (who) link(who === 1 ? "Stored by another thread before" : "Stored by the exception that was taken before", Math.min(at, path.count - 1));
      else link("Stored by", Math.max(0, at - 1));
      if (read < 0) say("Not read again on the path."); else link("Next read by", read);
    }
    for (const lock of path.locks || []) if (target !== undefined && lock.address === target)
      made.push(element("p", {}, "Held: ", ...this.lockParts(lock)));
    const close = element("button", {type: "button", textContent: "Close"});
    close.addEventListener("click", () => { box.hidden = true; });
    box.replaceChildren(...made, close); box.hidden = false;
  }
  // -- search
  search() {
    const path = this.path, text = $("search").value.trim(), box = $("results"), found = [];
    const add = (label, t) => { if (found.length < 200) found.push([label, t]); };
    if (/^0x[0-9a-f]+$/i.test(text)) {
      const value = BigInt(text);
      path.changeValues.forEach((values, r) => values.forEach((v, i) => v === value && add(`${path.registers[r]} becomes ${text}`, path.changeMoments[r][i])));
      found.sort((a, b) => a[1] - b[1]);
    } else if (/:\d+$/.test(text)) {
      for (const t of path.visits) if (path.lineText(path.lineAt[t]).endsWith(text)) add(path.lineText(path.lineAt[t]), t);
    } else if (text) for (const frame of path.frames) if (frame.name.includes(text)) add(frame.name, frame.begin);
    box.hidden = !text;
    box.replaceChildren(...(found.length ? found.map(([label, t]) => {
      const button = element("button", {type: "button", textContent: `${label} at moment ${t}`});
      button.addEventListener("click", () => this.go(t));
      return button;
    }) : [element("p", {textContent: "Nothing found."})]));
  }
}
Path.load().then(path => {
  $("loading").hidden = true; $("walk").hidden = false;
  window.view = new View(path);
}, error => { $("loading").textContent = "This page cannot be shown: " + error.message; });
