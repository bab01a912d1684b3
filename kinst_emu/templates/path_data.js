// The path: what happened at each moment. A moment is the state before one of the instructions.
class Stream {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }
  get more() { return this.at < this.bytes.length; }
  next() {
    let value = 0, scale = 1, byte;
    do { byte = this.bytes[this.at++]; value += (byte & 127) * scale; scale *= 128; } while (byte > 127);
    return value;
  }
  signed() { const z = this.next(); return z % 2 ? -(z + 1) / 2 : z / 2; }
}
const MASK = (1n << 64n) - 1n, PAGE = 4096;
// Index of the last element that is at most `value`, or -1.
function last(sorted, value, length = sorted.length) {
  let low = 0, high = length;
  while (low < high) { const mid = (low + high) >> 1; if (sorted[mid] <= value) low = mid + 1; else high = mid; }
  return low - 1;
}
class Path {
  static async load() {
    const names = ["pcs", "runs", "changes", "values", "loads", "stores", "stored", "storers", "pages"];
    const [data, ...streams] = await Promise.all(["data", ...names.map(n => "stream-" + n)].map(unpack));
    return new Path(JSON.parse(new TextDecoder().decode(data)),
                    Object.fromEntries(names.map((n, i) => [n, streams[i]])));
  }
  constructor(data, streams) {
    Object.assign(this, data);
    this.count = data.instructions;
    this.locks = data.locks && data.locks.map(([name, address, shared, begin, end, where]) =>
      ({name, address: address && BigInt("0x" + address), shared, begin, end, where}));
    this.pcs = new Int32Array(this.count);
    let stream = new Stream(streams.pcs), at = 0;
    for (let i = 0; i < this.count; i++) this.pcs[i] = at += stream.signed();
    this.readRuns(new Stream(streams.runs));
    this.readChanges(new Stream(streams.changes), streams.values);
    this.pageBytes = streams.pages;
    this.used = new Uint8Array(this.pageBytes.length);  // 1: accessed by the path, 2: changed from outside
    this.loads = this.readAccesses(new Stream(streams.loads));
    this.stores = this.readAccesses(new Stream(streams.stores));
    this.stored = streams.stored; this.storers = streams.storers;
    this.indexStores();
    for (const [page, offset, size] of this.outside) this.used.fill(2, page * PAGE + offset, page * PAGE + offset + size);
    this.pageOf = new Map(this.mapped.map(([virtual, page]) => [BigInt("0x" + virtual), page]));
    this.startValues = this.first.map(text => BigInt("0x" + text));
    this.readFrames();
    this.countCode();
  }
  readRuns(stream) {
    const all = []; while (stream.more) all.push(stream.signed());
    const n = all.length / 3;
    this.runs = [0, 1, 2].map(k => { let sum = 0; return all.slice(k * n, k * n + n).map(d => sum += d); });
  }
  run(t) { return Math.max(0, last(this.runs[0], t)); }
  position(t) { const r = this.run(t); return this.runs[0].length ? this.runs[1][r] + t - this.runs[0][r] : this.begin; }
  time(t) { const r = this.run(t); return this.runs[0].length ? this.runs[2][r] + t - this.runs[0][r] : 0; }
  readChanges(stream, bytes) {
    this.changeMoments = []; const counts = [];
    for (let r = 0; r < this.registers.length; r++) {
      const moments = new Int32Array(stream.next()); let at = 0;
      for (let i = 0; i < moments.length; i++) moments[i] = at += stream.signed();
      this.changeMoments.push(moments); counts.push(moments.length);
    }
    const total = bytes.length / 8, whole = new Uint8Array(bytes.length);
    for (let k = 0; k < 8; k++) for (let i = 0; i < total; i++) whole[8 * i + k] = bytes[k * total + i];
    const values = new BigUint64Array(whole.buffer); let begin = 0;
    this.changeValues = counts.map(n => values.subarray(begin, begin += n));
  }
  register(r, t) {
    const at = last(this.changeMoments[r], t);
    return at < 0 ? this.startValues[r] : this.changeValues[r][at];
  }
  readAccesses(stream) {
    const rows = {moment: [], place: [], size: []}; let t = 0;
    while (stream.more) {
      rows.moment.push(t += stream.signed());
      const place = stream.next() * PAGE + stream.next(), size = stream.next();
      rows.place.push(place); rows.size.push(size);
      this.used.fill(1, place, place + size);
    }
    return rows;
  }
  indexStores() {
    const {place, size} = this.stores; this.byLine = new Map(); this.storedAt = []; let begin = 0;
    for (let i = 0; i < place.length; i++) {
      this.storedAt.push(begin); begin += size[i];
      for (let line = place[i] >> 6; line <= (place[i] + size[i] - 1) >> 6; line++)
        if (this.byLine.has(line)) this.byLine.get(line).push(i); else this.byLine.set(line, [i]);
    }
  }
  readFrames() {
    this.frames = this.frames.map(([name, how, parent, begin, end, own], number) =>
      ({number, name, how, parent, begin, end, own, below: []}));
    this.roots = [];
    for (const frame of this.frames) {
      frame.depth = frame.parent < 0 ? 0 : this.frames[frame.parent].depth + 1;
      (frame.parent < 0 ? this.roots : this.frames[frame.parent].below).push(frame);
    }
    this.depth = this.frames.reduce((most, f) => Math.max(most, f.depth + 1), 1);
    this.frameAt = new Int32Array(this.count + 1).fill(-1);
    for (const frame of this.frames) this.frameAt.fill(frame.number, frame.begin, frame.end);
    if (this.count) this.frameAt[this.count] = this.frameAt[this.count - 1];
  }
  countCode() {
    const n = this.addresses.length, targets = new Map(this.branches);
    this.executed = new Int32Array(n); this.taken = new Map(); this.lineAt = new Int32Array(this.count + 1);
    this.visits = []; this.visitCount = new Map();
    let line = 0, frame = -1;
    for (let t = 0; t < this.count; t++) {
      const pc = this.pcs[t]; this.executed[pc]++;
      if (targets.has(pc) && t + 1 < this.count) {
        const row = this.taken.get(pc) || [0, 0], next = this.pcs[t + 1];
        if (next === targets.get(pc)) row[0]++; else if (next === pc + 1) row[1]++;
        this.taken.set(pc, row);
      }
      const here = this.frameAt[t], there = this.lines[pc] || (here === frame ? line : 0);
      if (here !== frame || there !== line) {
        this.visits.push(t); this.visitCount.set(there, (this.visitCount.get(there) || 0) + 1);
      }
      frame = here; line = this.lineAt[t] = there;
    }
    this.lineAt[this.count] = line;
    this.functionOf = new Int32Array(n);
    this.functions.forEach(([, first, length], number) => this.functionOf.fill(number, first, first + length));
  }
  pc(t) { return this.pcs[Math.min(t, this.count - 1)]; }
  lineText(number) {
    const [file, line] = this.places[number];
    return number ? this.files[file].replace(/^.*\/(sys|usr\.bin|lib)\//, "$1/").replace(/^(\.\.?\/)+/, "") + ":" + line : "";
  }
  // Bytes of memory at a moment; null where they are not known. `use`: 1 all accessed by the path, 0 not.
  memory(address, size, t) {
    const bytes = new Uint8Array(size); let use = 1;
    for (let done = 0; done < size;) {
      const at = (address + BigInt(done)) & MASK, page = this.pageOf.get(at & ~4095n), offset = Number(at & 4095n);
      if (page === undefined) return null;
      const place = page * PAGE + offset, part = Math.min(size - done, PAGE - offset);
      for (let i = 0; i < part; i++) if (this.used[place + i] !== 1) { if (this.used[place + i] === 2) return null; use = 0; }
      bytes.set(this.physical(place, part, t), done); done += part;
    }
    return {bytes, use};
  }
  physical(place, size, t) {
    const bytes = this.pageBytes.slice(place, place + size), ids = new Set();
    for (let line = place >> 6; line <= (place + size - 1) >> 6; line++) for (const i of this.byLine.get(line) || []) ids.add(i);
    for (const i of [...ids].sort((a, b) => a - b)) {
      if (this.stores.moment[i] > t) break;
      for (let k = 0; k < this.stores.size[i]; k++) {
        const at = this.stores.place[i] + k - place;
        if (at >= 0 && at < size) bytes[at] = this.stored[this.storedAt[i] + k];
      }
    }
    return bytes;
  }
  // The last store to memory up to a moment, with who made it, and the next load from it; -1 for none.
  storeBefore(address, size, t) {
    const at = this.findAccess(this.stores, address, size, t, -1);
    return at < 0 ? [-1, 0] : [this.stores.moment[at], this.storers[at]];
  }
  loadAfter(address, size, t) {
    const at = this.findAccess(this.loads, address, size, t, 1);
    return at < 0 ? -1 : this.loads.moment[at];
  }
  // Whether an exception was taken just before a moment.
  isTaken(t) {
    if (!this.taken_) this.taken_ = new Set(this.frames.filter(f => f.how === "interrupt").map(f => f.begin));
    return this.taken_.has(t);
  }
  findAccess(rows, address, size, t, way) {
    const page = this.pageOf.get(address & ~4095n); if (page === undefined) return -1;
    const place = page * PAGE + Number(address & 4095n);
    let at = last(rows.moment, way < 0 ? t : t - 1) + (way < 0 ? 0 : 1);
    for (; at >= 0 && at < rows.moment.length; at += way)
      if (rows.place[at] < place + size && place < rows.place[at] + rows.size[at]) return at;
    return -1;
  }
  mentions(pc, register) { return this.mentionLists[this.mentionOf[pc]].includes(register); }
}
