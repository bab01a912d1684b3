// The picture of a firing, moving: what is to be set in it, from each moment to the next.
function player(film, followed) {
  var section = document.getElementById('player'), told = document.getElementById('told');
  var svg = section.querySelector('svg'), scrub = document.getElementById('scrub');
  var play = document.getElementById('play'), speed = document.getElementById('speed');
  var still = window.matchMedia('(prefers-reduced-motion: reduce)');
  var narrow = window.matchMedia('(max-width: 40rem)');
  var elements = [svg].concat(Array.prototype.slice.call(svg.querySelectorAll('*')));
  var setters = film.places.map(function (place) {
    var element = elements[place[0]], name = place[1];
    return function (value) {
      if (name) { element.setAttribute(name, value); } else { element.textContent = value; }
    };
  });
  var first = film.places.map(function (place) {
    var element = elements[place[0]];
    return place[1] ? element.getAttribute(place[1]) : element.textContent;
  });
  var before = first, states = film.changes.map(function (change) {
    before = before.slice();
    for (var i = 0; i < change.length; i += 2) { before[change[i]] = film.strings[change[i + 1]]; }
    return before;
  });
  var shown = first.slice(), at = 0, playing = false, due = 0, came = 0;
  var arrows = Array.prototype.slice.call(svg.querySelectorAll('.arrow, .store'));

  function stepOf(moment) {
    var found = 0;
    film.steps.forEach(function (step, i) { if (step[0] <= moment) { found = i; } });
    return found;
  }
  function show(moment, step) {
    at = Math.max(0, Math.min(states.length - 1, moment));
    var state = states[at];
    if (step !== undefined) {  // what the step is about is marked, and its title is there
      var own = film.steps[step][2];
      state = state.slice();
      for (var i = 0; i < own.length; i += 2) { state[own[i]] = film.strings[own[i + 1]]; }
    }
    state.forEach(function (value, i) {
      if (shown[i] !== value) { setters[i](value); shown[i] = value; } });
    scrub.value = at + 1;
    scrub.setAttribute('aria-valuetext', 'moment ' + (at + 1) + ' of ' + states.length);
    came = performance.now();
    // While it plays, a listener hears the steps, not each instruction.
    var text = playing ? svg.getAttribute('aria-label') : svg.querySelector('desc').textContent;
    if (told.textContent !== text) { told.textContent = text; }
    followed(step === undefined ? stepOf(at) : step, step !== undefined);
  }
  function draw(now) {
    if (!still.matches) {
      var part = Math.min(1, (now - came) / Math.min(350, 700 / speed.value));
      arrows.forEach(function (arrow) {
        arrow.setAttribute('stroke-dasharray', part < 1 ? 1 : 'none');
        arrow.setAttribute('stroke-dashoffset', 1 - part); });
    }
    if (playing && now >= due) {
      due = Math.max(due + 1000 / speed.value, now);
      if (at + 1 < states.length) { show(at + 1); }
      if (at + 1 >= states.length) { stop(); }
    }
    if (playing || (!still.matches && part < 1)) { requestAnimationFrame(draw); } else { drawn = false; }
  }
  var drawn = false;
  function animate() { if (!drawn) { drawn = true; requestAnimationFrame(draw); } }
  function stop() {
    playing = false;
    play.setAttribute('aria-pressed', 'false');
    play.textContent = 'Play (space)';
    told.textContent = svg.querySelector('desc').textContent;
  }
  function start() {
    if (at + 1 >= states.length) { show(0); }
    playing = true;
    due = performance.now() + 1000 / speed.value;
    play.setAttribute('aria-pressed', 'true');
    play.textContent = 'Pause (space)';
    animate();
  }
  function go(moment, step) { if (playing) { stop(); } show(moment, step); animate(); }
  function faster(by) {
    speed.selectedIndex = Math.max(0, Math.min(speed.length - 1, speed.selectedIndex + by));
    due = Math.min(due, performance.now() + 1000 / speed.value);
  }
  function lay() {
    // On a phone the panes stand below each other, each as wide as the screen.
    var y = 64, panes = section.querySelectorAll('.pane');
    panes.forEach(function (pane) {
      if (!pane.dataset.place) { pane.dataset.place = pane.getAttribute('transform'); }
      pane.setAttribute('transform', narrow.matches ? 'translate(8 ' + y + ')' : pane.dataset.place);
      y += Number(pane.querySelector('.edge').getAttribute('height')) + 16;
    });
    if (!svg.dataset.box) { svg.dataset.box = svg.getAttribute('viewBox'); }
    svg.setAttribute('viewBox', narrow.matches ? '0 0 462 ' + y : svg.dataset.box);
  }
  var act = {
    play: function () { if (playing) { stop(); } else { start(); } },
    back: function () { go(at - 1); }, forward: function () { go(at + 1); },
    whole: function () {
      if (document.fullscreenElement) { document.exitFullscreen(); }
      else if (document.fullscreenEnabled) { section.requestFullscreen(); } },
    slower: function () { faster(-1); }, faster: function () { faster(1); },
    first: function () { go(0); }, last: function () { go(states.length - 1); }
  };
  ['play', 'back', 'forward', 'whole'].forEach(function (name) {
    document.getElementById(name).addEventListener('click', act[name]); });
  scrub.addEventListener('input', function () { go(scrub.value - 1); });
  speed.addEventListener('change', function () { faster(0); });
  document.addEventListener('keydown', function (e) {
    if (e.ctrlKey || e.altKey || e.metaKey) { return; }
    // What has the focus keeps its own keys; outside the picture, Home and End are the page's.
    var own = /^(BUTTON|SELECT|INPUT|A|SUMMARY)$/.test(e.target.tagName);
    var typed = /^(SELECT|INPUT)$/.test(e.target.tagName), inside = section.contains(e.target);
    var name = { ' ': own || e.shiftKey || e.repeat ? '' : 'play', ',': 'back', '.': 'forward',
      '<': 'slower', '>': 'faster', f: typed || e.repeat ? '' : 'whole',
      Home: inside && !typed ? 'first' : '', End: inside && !typed ? 'last' : '' }[e.key];
    if (name) { act[name](); e.preventDefault(); }
  });
  narrow.addEventListener('change', lay);
  arrows.forEach(function (arrow) { arrow.setAttribute('pathLength', 1); });
  document.body.classList.add('moving');
  document.getElementById('whole').hidden = !document.fullscreenEnabled;
  section.hidden = false;
  lay();
  show(0, 0);
  return { step: function (n) { go(film.steps[n][0], n); }, steps: film.steps };
}
