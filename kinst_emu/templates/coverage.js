const view = {};
const $ = id => document.getElementById(id);
function made(tag, text, more = {}) {
  const node = Object.assign(document.createElement(tag), more);
  if (text !== undefined) node.textContent = text;
  return node;
}
const share = ([some, all]) => all ? some / all : 0;
const sentence = ([some, all], what) => `${some} of ${all} ${what}` + (all ? ` (${(100 * some / all).toFixed(1)} %)` : "");
function count(file) {
  file.hit = [file.lines.filter(l => l[1]).length, file.lines.length];
  file.called = [file.functions.filter(f => f[2]).length, file.functions.length];
  file.ways = [file.branches.reduce((n, b) => n + (b[1] > 0) + (b[2] > 0), 0), 2 * file.branches.length];
}
const COLUMNS = [
  ["File", f => f.name, f => f.name], ["", null, null],
  ["Lines", f => -f.hit[0], f => `${f.hit[0]} / ${f.hit[1]}`],
  ["%", f => -share(f.hit), f => (100 * share(f.hit)).toFixed(1)],
  ["Functions", f => -f.called[0], f => `${f.called[0]} / ${f.called[1]}`],
  ["Branches", f => -f.ways[0], f => `${f.ways[0]} / ${f.ways[1]}`],
  ["New lines", f => -f.new.length, f => f.new.length]];
function overview() {
  $("overview").hidden = false; $("file").hidden = true;
  const wanted = $("filter").value.trim().toLowerCase(), key = COLUMNS[view.sort][1];
  const rows = view.data.files.map((file, number) => [file, number]).filter(([file]) => !wanted
    || file.name.toLowerCase().includes(wanted)
    || file.functions.some(f => f[0].toLowerCase().includes(wanted)));
  rows.sort(([a], [b]) => key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.name < b.name ? -1 : 1);
  $("files").replaceChildren(...rows.map(([file, number]) => {
    const row = made("tr");
    COLUMNS.forEach(([head, , shown], at) => {
      if (at === 6 && !view.data.compared) return;
      const cell = made("td", undefined, {className: at > 1 ? "n" : "text"});
      if (at === 0) cell.append(made("a", file.name.replace(view.data.prefix, ""), {href: `#${number}`}));
      else if (at === 1) {
        const bar = made("div", undefined, {className: "bar"}), part = made("i");
        part.style.width = `${100 * share(file.hit)}%`; bar.append(part); cell.append(bar);
      } else cell.textContent = shown(file);
      row.append(cell);
    });
    return row;
  }));
}
function show(number, line) {
  const file = view.data.files[number];
  view.file = file;
  $("overview").hidden = true; $("file").hidden = false;
  $("name").textContent = file.name;
  $("counts").textContent = [sentence(file.hit, "lines executed"), sentence(file.called, "functions called"),
    sentence(file.ways, "ways of branches taken"), ...(view.data.compared ? [`${file.new.length} new lines`] : [])].join(", ");
  $("functions-title").textContent = `${file.functions.length} functions`;
  $("functions").replaceChildren(...file.functions.map(([name, first, calls]) => {
    const item = made("li");
    item.append(made("a", name, {href: `#${number}:${first}`}), ` ${calls ? `${calls} calls` : "not called"}`);
    return item;
  }));
  const counts = new Map(file.lines), fresh = new Set(file.new), branches = new Map();
  for (const [at, jumped, stayed] of file.branches)
    branches.set(at, [...(branches.get(at) || []), `jumped ${jumped}/${jumped + stayed}`]);
  const rows = [], known = new Set();
  const add = (at, text, gap) => {
    const times = counts.get(at), row = made("div", undefined, {id: `l${at}`});
    row.className = [times === undefined ? "" : times ? "hit" : "miss", fresh.has(at) ? "new" : "",
      gap ? "gap" : ""].filter(Boolean).join(" ");
    row.append(made("b", times === undefined ? "" : times), made("u", at), text);
    if (branches.has(at)) row.append(made("i", branches.get(at).join(", ")));
    rows.push([at, row]); known.add(at);
  };
  for (const [first, text] of file.text) text.split("\n").forEach((one, n) => add(first + n, one, n === 0));
  for (const [at] of file.lines) if (!known.has(at)) add(at, "", false);
  rows.sort((a, b) => a[0] - b[0]);
  $("code").replaceChildren(...rows.map(row => row[1]));
  if (line) mark(line); else { window.scrollTo(0, 0); $("name").focus(); }
}
function mark(line) {
  document.querySelector("#code .now")?.classList.remove("now");
  const row = $(`l${line}`);
  if (!row) return;
  row.classList.add("now"); row.scrollIntoView({block: "center"});
  view.line = line;
}
function next(kind) {
  const rows = [...document.querySelectorAll(`#code .${kind}`)];
  const at = rows.map(row => Number(row.id.slice(1)));
  const found = at.find(line => line > view.line) ?? at[0];
  if (found) mark(found);
}
function route() {
  const match = /^#(\d+)(?::(\d+))?$/.exec(location.hash);
  view.line = 0;
  if (match && view.data.files[match[1]]) show(Number(match[1]), Number(match[2] || 0));
  else overview();
}
(async function () {
  view.data = await unpackJson("data"); view.sort = 2; view.line = 0;
  view.data.files.forEach(count);
  const sum = part => view.data.files.reduce(([a, b], f) => [a + f[part][0], b + f[part][1]], [0, 0]);
  $("total").textContent = [`${view.data.files.length} files`, sentence(sum("hit"), "lines executed"),
    sentence(sum("called"), "functions called"), sentence(sum("ways"), "ways of branches taken")].join(", ");
  $("heads").append(...COLUMNS.map(([head, key], at) => {
    if (!key) return made("td");
    const cell = made("th", undefined, {scope: "col", hidden: at === 6 && !view.data.compared});
    const button = made("button", head, {type: "button"});
    button.setAttribute("aria-pressed", at === view.sort);
    button.addEventListener("click", () => {
      view.sort = at;
      for (const one of document.querySelectorAll("#heads button")) one.setAttribute("aria-pressed", one === button);
      overview();
    });
    cell.append(button);
    return cell;
  }));
  $("filter").addEventListener("input", overview);
  $("next-new").hidden = !view.data.compared;
  for (const kind of ["miss", "hit", "new"]) $(`next-${kind}`).addEventListener("click", () => next(kind));
  window.addEventListener("hashchange", route);
  $("loading").hidden = true;
  route();
  view.ready = true;
})();
