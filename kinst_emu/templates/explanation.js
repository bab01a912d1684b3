(function () {
  var steps = Array.prototype.slice.call(document.querySelectorAll('main > section.step'));
  var links = Array.prototype.slice.call(document.querySelectorAll('nav li > a'));
  var bar = document.querySelector('.keys'), say = document.getElementById('at'), at = -1;
  var film = document.getElementById('film'), moving = null;
  function numberOf(name) { return steps.findIndex(function (s) { return s.id === name; }); }
  // Show the step that the animation has reached.
  function followed(n, quiet) {
    var now = numberOf(moving.steps[n][1]);
    if (now < 0) { return; }  // a step of the animation that has no text
    links.forEach(function (link, i) {
      if (i === now) { link.setAttribute('aria-current', 'step'); }
      else { link.removeAttribute('aria-current'); } });
    if (!quiet && at >= 0 && at !== now) { show(now, false, true); }
  }
  function show(n, focus, came) {
    at = Math.max(-1, Math.min(steps.length - 1, n));
    var held = document.activeElement;
    steps.forEach(function (s, i) { s.hidden = at >= 0 && i !== at; });
    if (came && held && held.closest('section.step[hidden]')) {
      document.getElementById('play').focus({ preventScroll: true });
    }
    say.textContent = at < 0 ? 'all ' + steps.length + ' steps'
      : 'step ' + (at + 1) + ' of ' + steps.length;
    if (moving && at >= 0 && !came) {
      moving.steps.forEach(function (step, i) {
        if (step[1] === steps[at].id) { moving.step(i); } });
    }
    if (focus && at >= 0) { steps[at].querySelector('h2').focus({ preventScroll: !!moving }); }
  }
  var act = { next: function () { show(at + 1, true); }, previous: function () {
    show(Math.max(0, at - 1), true); }, all: function () { show(-1); } };
  Object.keys(act).forEach(function (name) {
    document.getElementById(name).addEventListener('click', act[name]); });
  document.addEventListener('keydown', function (e) {
    if (e.ctrlKey || e.altKey || e.metaKey) { return; }
    var name = { n: 'next', ArrowRight: 'next', p: 'previous', ArrowLeft: 'previous',
      a: 'all' }[e.key];
    var own = e.target.closest && e.target.closest('.scroll, input, select');
    if (name && !(e.key.indexOf('Arrow') === 0 && own)) { act[name](); }
  });
  links.forEach(function (link, i) {
    link.addEventListener('click', function (e) {
      // Inside a notebook's frame, following the link would open the notebook's own address.
      e.preventDefault();
      if (at >= 0) { show(i, true); } else {
        steps[i].scrollIntoView();
        steps[i].querySelector('h2').focus({ preventScroll: true });
      } }); });
  bar.hidden = false;
  if (film) {
    moving = { steps: [] };
    var data = JSON.parse(film.textContent);
    moving.steps = data.steps;
    moving = player(data, followed);
  }
  show(-1);
})();
