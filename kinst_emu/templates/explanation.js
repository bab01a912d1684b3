(function () {
  var steps = Array.prototype.slice.call(document.querySelectorAll('main > section'));
  var bar = document.querySelector('.keys'), say = document.getElementById('at'), at = -1;
  function show(n, focus) {
    at = Math.max(-1, Math.min(steps.length - 1, n));
    steps.forEach(function (s, i) { s.hidden = at >= 0 && i !== at; });
    say.textContent = at < 0 ? 'all ' + steps.length + ' steps'
      : 'step ' + (at + 1) + ' of ' + steps.length;
    if (focus && at >= 0) { steps[at].querySelector('h2').focus(); }
  }
  var act = { next: function () { show(at + 1, true); }, previous: function () {
    show(Math.max(0, at - 1), true); }, all: function () { show(-1); } };
  Object.keys(act).forEach(function (name) {
    document.getElementById(name).addEventListener('click', act[name]); });
  document.addEventListener('keydown', function (e) {
    if (e.ctrlKey || e.altKey || e.metaKey) { return; }
    var name = { n: 'next', ArrowRight: 'next', p: 'previous', ArrowLeft: 'previous',
      a: 'all' }[e.key];
    var scrolls = e.target.closest && e.target.closest('.scroll');
    if (name && !(e.key.indexOf('Arrow') === 0 && scrolls)) { act[name](); }
  });
  document.querySelectorAll('nav a').forEach(function (link, i) {
    link.addEventListener('click', function () { if (at >= 0) { show(i, true); } }); });
  bar.hidden = false;
  show(-1);
})();
