// Values of variables: locations, types, text.
class Unknown extends Error {}
const signed = (value, bits = 64) => BigInt.asIntN(bits, value);
const hex = value => "0x" + value.toString(16);
// A frame at a moment: what its registers were when its code ran last.
class FrameView {
  // `moment`: the moment of the frame's own next instruction; `interrupted`: an exception came there.
  constructor(path, frame, now, moment, interrupted) {
    Object.assign(this, {path, frame, now, moment, interrupted});
    this.pc = path.pc(moment);
  }
  register(r) {
    const path = this.path, moments = path.changeMoments[r];
    if (this.interrupted && this.moment && moments[last(moments, this.moment)] === this.moment) {
      // The exception changed it, or the instruction before it.
      if (path.mentions(path.pc(this.moment - 1), r)) throw new Unknown("an interrupt changed the register");
      return path.register(r, this.moment - 1);
    }
    return path.register(r, this.moment);
  }
  entered(r) {
    if (this.frame.number < this.path.outer) throw new Unknown("the function was called before the path begins");
    return this.path.register(r, this.frame.begin);
  }
  load(address, size) {
    const found = this.path.memory(address, size, this.now);
    if (!found) throw new Unknown("not in the page: memory at " + hex(address));
    this.use &= found.use;
    return number(found.bytes);
  }
  term(term) {
    const [kind, a, b, c, d] = term;
    if (kind === "r") { this.source = {register: a}; return this.register(a); }
    if (kind === "e") { this.source = null; return this.entered(a); }
    if (kind === "c") { this.source = null; return BigInt("0x" + a); }
    if (kind === "l") { const at = this.term(a), value = this.load(at, b); this.source = {address: at, size: b}; return value; }
    const value = operation(a, this.term(b), this.term(c), d);
    this.source = null;
    return value;
  }
  // The bytes of a variable: {bytes, use, source} where source is a register or an address.
  variable([, type, , placeNumber, reason]) {
    if (placeNumber < 0) throw new Unknown(reason);
    const place = this.path.variablePlaces[placeNumber], size = typeSize(this.path, type);
    this.use = 1; this.source = null;
    if (place[0] === 1) {
      const address = this.term(place[1]), found = this.path.memory(address, size, this.now);
      if (!found) throw new Unknown("not in the page: memory at " + hex(address));
      return {bytes: found.bytes, use: found.use, source: {address, size}};
    }
    const bytes = new Uint8Array(Math.max(size, 8));
    if (place[0] === 0) { put(bytes, 0, this.term(place[1]), 8); if (size > 8) throw new Unknown("only part of the value is available"); }
    else {
      let at = 0;
      for (const [term, length] of place[1]) { if (at + length > bytes.length) break; put(bytes, at, this.term(term), length); at += length; }
      if (at < size) throw new Unknown("only part of the value is available");
      this.source = null;
    }
    return {bytes: bytes.slice(0, size), use: this.use, source: this.source};
  }
}
function put(bytes, at, value, size) { for (let k = 0; k < size; k++) bytes[at + k] = Number(value >> BigInt(8 * k) & 255n); }
function number(bytes) { let value = 0n; for (let k = bytes.length - 1; k >= 0; k--) value = value << 8n | BigInt(bytes[k]); return value; }
function operation(sign, left, right, isSigned) {
  const amount = right & MASK;
  if (isSigned) { left = signed(left); right = signed(right); }
  const yes = test => test ? 1n : 0n;
  switch (sign) {
    case "+": return left + right & MASK; case "-": return left - right & MASK;
    case "*": return left * right & MASK; case "&": return left & right & MASK;
    case "|": return (left | right) & MASK; case "^": return (left ^ right) & MASK;
    case "<<": return amount > 63n ? 0n : left << amount & MASK;
    case ">>": return amount > 63n ? (left < 0n ? MASK : 0n) : left >> amount & MASK;
    case "/": case "%":
      if (right === 0n) throw new Unknown("a location expression divides by zero");
      return (sign === "/" ? left / right : left % right) & MASK;
    case "==": return yes(left === right); case "!=": return yes(left !== right);
    case "<": return yes(left < right); case "<=": return yes(left <= right);
    case ">": return yes(left > right); case ">=": return yes(left >= right);
  }
  throw new Unknown("unknown operation " + sign);
}
function typeSize(path, type) { return type < 0 ? 8 : path.types[type][2]; }
function isText(path, type) { return type >= 0 && path.types[type][0] === "i" && path.types[type][4] === "char"; }
// The text of a value.
function show(path, type, bytes, t) {
  if (type < 0) return hex(number(bytes));
  const [kind, , size, third, fourth] = path.types[type], value = number(bytes.slice(0, size));
  if (kind === "i") {
    const whole = third ? signed(value, 8 * size) : value;
    if (fourth === "boolean") return value ? "true" : "false";
    const printed = whole > 9n || whole < 0n ? `${whole} (${hex(value)})` : `${whole}`;
    return fourth === "char" && value > 31n && value < 127n ? `${printed} '${String.fromCharCode(Number(value))}'` : printed;
  }
  if (kind === "e") {
    const whole = third ? signed(value, 8 * size) : value, name = fourth[whole];
    return name === undefined ? `${whole}` : `${name} (${whole})`;
  }
  if (kind === "p") {
    if (!value) return "NULL";
    const text = isText(path, third) ? string(path, value, t) : null;
    return text === null ? hex(value) : `${hex(value)} ${text}`;
  }
  if (kind === "f") {
    const view = new DataView(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + size));
    return size === 8 ? `${view.getFloat64(0, true)}` : size === 4 ? `${view.getFloat32(0, true)}` : "(not shown)";
  }
  if (kind === "a") {
    if (isText(path, third)) return quoted(bytes);
    return `[${fourth}]`;
  }
  if (kind === "s") return "{…}";
  return "(not shown)";
}
const MOST_TEXT = 80;
function quoted(bytes) {
  let text = "";
  for (const byte of bytes) {
    if (!byte) return `"${text}"`;
    if (text.length >= MOST_TEXT) return `"${text}"…`;
    text += byte === 34 || byte === 92 ? "\\" + String.fromCharCode(byte) : byte > 31 && byte < 127 ? String.fromCharCode(byte) : "\\x" + byte.toString(16).padStart(2, "0");
  }
  return `"${text}"…`;
}
function string(path, address, t) {
  const bytes = [];
  for (let k = 0; k <= MOST_TEXT; k++) {
    const found = path.memory(address + BigInt(k), 1, t);
    if (!found) return null;
    bytes.push(found.bytes[0]);
    if (!found.bytes[0]) break;
  }
  return quoted(bytes);
}
const MOST_ELEMENTS = 64;
// The parts of a structure, an array, or what a pointer points to: [name, type, value or Unknown].
function parts(path, type, bytes, source, t) {
  const [kind, , , third, fourth] = path.types[type];
  if (kind === "p") {
    const address = number(bytes), size = third < 0 ? 0 : typeSize(path, third);
    if (!address || !size) return [];
    return [["*", third, at(path, address, size, t)]];
  }
  if (kind === "a") {
    const size = typeSize(path, third);
    return Array.from({length: Math.min(fourth, MOST_ELEMENTS)}, (_, k) => {
      const from = inside(source, k * size, size), found = from && size ? at(path, from.address, size, t) : null;
      return [`[${k}]`, third, found && !(found instanceof Unknown) ? found : {bytes: bytes.slice(k * size, k * size + size), use: 1, source: from}];
    });
  }
  if (kind !== "s") return [];
  return third.map(([name, offset, width, member]) => {
    const begin = offset >> 3, size = typeSize(path, member), from = inside(source, begin, size);
    if (width) {
      const whole = number(bytes.slice(begin, Math.min(begin + 8, bytes.length))), part = new Uint8Array(8);
      let value = whole >> BigInt(offset & 7) & ((1n << BigInt(width)) - 1n);
      const row = member < 0 ? null : path.types[member];
      if (row && (row[0] === "i" || row[0] === "e") && row[3]) value = BigInt.asUintN(64, signed(value, width));
      put(part, 0, value, 8);
      const found = from && from.address !== undefined ? at(path, from.address, Math.ceil(((offset & 7) + width) / 8), t) : null;
      return [name, member, {bytes: part.slice(0, size), use: found && !(found instanceof Unknown) ? found.use : 1, source: from}];
    }
    const found = from && from.address !== undefined && size ? at(path, from.address, size, t) : null;
    return [name, member, found && !(found instanceof Unknown) ? found : {bytes: bytes.slice(begin, begin + size), use: 1, source: from}];
  });
}
function inside(source, offset, size) { return source && source.address !== undefined ? {address: source.address + BigInt(offset) & MASK, size} : null; }
function at(path, address, size, t) {
  const found = path.memory(address, size, t);
  return found ? {bytes: found.bytes, use: found.use, source: {address, size}} : new Unknown("not in the page: memory at " + hex(address));
}
