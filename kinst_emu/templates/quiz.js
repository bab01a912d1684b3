(function () {
  var PRIMES = [], K = [], H = [], n, i;
  for (n = 2; PRIMES.length < 64; n += 1) {
    if (PRIMES.every(function (p) { return n % p; })) { PRIMES.push(n); }
  }
  function fraction(x) { return ((x - Math.floor(x)) * 4294967296) | 0; }
  for (i = 0; i < 64; i += 1) { K.push(fraction(Math.cbrt(PRIMES[i]))); }
  for (i = 0; i < 8; i += 1) { H.push(fraction(Math.sqrt(PRIMES[i]))); }
  function turn(x, by) { return (x >>> by) | (x << (32 - by)); }
  // SHA-256 (FIPS 180-4) of less than 512 MiB.
  function sha256(bytes) {
    var size = bytes.length, whole = new Uint8Array(((size + 72) >> 6) << 6), h = H.slice();
    var view = new DataView(whole.buffer), w = new Int32Array(64), at, j;
    whole.set(bytes); whole[size] = 0x80; view.setUint32(whole.length - 4, size * 8);
    for (at = 0; at < whole.length; at += 64) {
      var a = h.slice();
      for (j = 0; j < 64; j += 1) {
        if (j < 16) { w[j] = view.getInt32(at + 4 * j); } else {
          var x = w[j - 15], y = w[j - 2];
          w[j] = w[j - 16] + w[j - 7] + (turn(x, 7) ^ turn(x, 18) ^ (x >>> 3))
            + (turn(y, 17) ^ turn(y, 19) ^ (y >>> 10));
        }
        var one = a[7] + (turn(a[4], 6) ^ turn(a[4], 11) ^ turn(a[4], 25))
          + ((a[4] & a[5]) ^ (~a[4] & a[6])) + K[j] + w[j] | 0;
        var two = (turn(a[0], 2) ^ turn(a[0], 13) ^ turn(a[0], 22))
          + ((a[0] & a[1]) ^ (a[0] & a[2]) ^ (a[1] & a[2])) | 0;
        a = [one + two | 0, a[0], a[1], a[2], a[3] + one | 0, a[4], a[5], a[6]];
      }
      h = h.map(function (value, k) { return value + a[k] | 0; });
    }
    var out = new Uint8Array(32), said = new DataView(out.buffer);
    h.forEach(function (value, k) { said.setInt32(4 * k, value); });
    return out;
  }
  function key(salt, answer, rounds) {
    var made = sha256(new TextEncoder().encode(salt + ' ' + answer));
    for (var r = 0; r < rounds; r += 1) { made = sha256(made); }
    return made;
  }
  function opened(box, made) {
    var sealed = Uint8Array.from(atob(box), function (c) { return c.charCodeAt(0); });
    for (var at = 0; at < sealed.length; at += 32) {
      var block = new Uint8Array(36);
      block.set(made); new DataView(block.buffer).setUint32(32, at / 32);
      var mask = sha256(block);
      for (var k = 0; k < 32 && at + k < sealed.length; k += 1) { sealed[at + k] ^= mask[k]; }
    }
    var text = new TextDecoder().decode(sealed);
    return /^(right|wrong): /.test(text) ? text : '';
  }
  function number(text, bits) {
    var typed = text.trim().toLowerCase().replace(/_/g, ''), minus = typed[0] === '-';
    if (minus) { typed = typed.slice(1); }
    if (!/^(0x[0-9a-f]{1,32}|[0-9]{1,32})$/.test(typed)) { return null; }
    var value = BigInt(typed);
    if (minus) { value = -value; }
    if (value < -(1n << BigInt(bits - 1)) || value >= 1n << BigInt(bits)) { return null; }
    return String(BigInt.asUintN(bits, value));
  }
  var sealed = JSON.parse(document.getElementById('sealed').textContent);
  var forms = Array.prototype.slice.call(document.querySelectorAll('form'));
  var score = document.getElementById('score'), marks = forms.map(function () { return ''; });
  function total() {
    var right = marks.filter(function (m) { return m === 'right'; }).length;
    var done = marks.filter(Boolean).length;
    score.textContent = right + ' of ' + forms.length + ' right, ' + (forms.length - done)
      + ' unanswered';
  }
  forms.forEach(function (form, at) {
    var question = sealed[at], said = form.querySelector('[role=status]');
    form.addEventListener('submit', function (e) {
      e.preventDefault();
      var given = new FormData(form).get('answer') || '';
      var answer = question.bits ? number(given, question.bits) : given;
      if (!answer) { said.textContent = 'That is not ' + said.dataset.wanted + '.'; return; }
      var made = key(question.salt, answer, ROUNDS), text = '';
      question.boxes.forEach(function (box) { text = text || opened(box, made); });
      var right = text.indexOf('right: ') === 0;
      said.textContent = text ? text.slice(7) : 'No. Try again.';
      // A shown answer does not count; a wrong answer can still be corrected.
      if (marks[at] !== 'shown' && marks[at] !== 'right') { marks[at] = right ? 'right' : 'wrong'; }
      total();
    });
    form.querySelector('.show').addEventListener('click', function () {
      if (marks[at] !== 'right') { marks[at] = 'shown'; }
      said.textContent = opened(question.shown, key(question.salt, 'show', SHOWN_ROUNDS)).slice(7);
      total();
    });
  });
  score.hidden = false;
  total();
})();
