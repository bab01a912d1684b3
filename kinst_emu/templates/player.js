// One animated picture: the places that change, and their new values at each moment.
function picture(svg, film) {
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
  var shown = first.slice();
  return {
    svg: svg,
    show: function (moment, name) {
      var state = states[moment];
      film.steps.forEach(function (step) {
        if (step[1] !== name || step[0] !== moment) { return; }
        state = state.slice();  // a step has its own title and marks the pane that it is about
        for (var i = 0; i < step[2].length; i += 2) {
          state[step[2][i]] = film.strings[step[2][i + 1]]; }
      });
      state.forEach(function (value, i) {
        if (shown[i] !== value) { setters[i](value); shown[i] = value; } });
    }
  };
}
// The pictures of several firings, played together; a beat has one moment of each picture.
function player(data, followed) {
  var section = document.getElementById('player'), told = document.getElementById('told');
  var svgs = Array.prototype.slice.call(section.querySelectorAll('svg.picture'));
  var pictures = svgs.map(function (svg, i) { return picture(svg, data.films[i]); });
  var beats = data.beats, steps = data.steps, svg = svgs[0];
  var scrub = document.getElementById('scrub'), view = document.getElementById('view');
  var play = document.getElementById('play'), speed = document.getElementById('speed');
  var still = window.matchMedia('(prefers-reduced-motion: reduce)');
  var narrow = window.matchMedia('(max-width: 40rem)');
  var titles = Array.prototype.slice.call(section.querySelectorAll('.now'));
  var at = 0, playing = false, due = 0, came = 0;
  var arrows = Array.prototype.slice.call(section.querySelectorAll('.arrow, .store'));

  function stepOf(moment) {
    var found = 0;
    steps.forEach(function (step, i) { if (step[0] <= moment) { found = i; } });
    return found;
  }
  // Return the view of a picture: the pane of the step or, between steps, the pane with control.
  function column(svg) {
    var pane = svg.querySelector('.pane.about');
    var place = pane ? pane.dataset.pane : svg.dataset.place;
    if (place === 'registers' || place === 'way') { return 'machine'; }
    return /^(function|trampoline|clause)$/.test(place) ? 'code' : 'stack';
  }
  function look() {
    if (!view) { return; }
    // A firing without the step shows the same view as a firing with the step.
    var about = svgs.filter(function (svg) { return svg.querySelector('.pane.about'); })[0];
    svgs.forEach(function (svg) {
      svg.dataset.view = view.value || column(
        svg.querySelector('.pane.about') ? svg : about || svg);
      svg.setAttribute('viewBox', data.views[svg.dataset.view]); });
  }
  function texts(play) {
    return svgs.map(function (svg) {
      return (data.names[0] ? svg.parentNode.getAttribute('aria-label') + ': ' : '')
        + (play ? svg.getAttribute('aria-label') : svg.querySelector('desc').textContent);
    }).join(' ');
  }
  function show(moment, step) {
    at = Math.max(0, Math.min(beats.length - 1, moment));
    pictures.forEach(function (one, i) {
      one.show(beats[at][i], step === undefined ? '' : steps[step][1]); });
    look();
    titles.forEach(function (one, i) {
      one.textContent = svgs[i].getAttribute('aria-label'); });
    scrub.value = at + 1;
    scrub.setAttribute('aria-valuetext', 'moment ' + (at + 1) + ' of ' + beats.length);
    came = performance.now();
    // While the animation plays, screen readers announce the steps, not each instruction.
    var text = texts(playing);
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
      if (at + 1 < beats.length) { show(at + 1); }
      if (at + 1 >= beats.length) { stop(); }
    }
    if (playing || (!still.matches && part < 1)) { requestAnimationFrame(draw); } else { drawn = false; }
  }
  var drawn = false;
  function animate() { if (!drawn) { drawn = true; requestAnimationFrame(draw); } }
  function stop() {
    playing = false;
    play.setAttribute('aria-pressed', 'false');
    play.textContent = 'Play (space)';
    told.textContent = texts(false);
  }
  function start() {
    if (at + 1 >= beats.length) { show(0); }
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
    if (view) { look(); return; }
    // On a phone, the panes are stacked, each as wide as the screen.
    svgs.forEach(function (svg) {
      var y = 64;
      svg.querySelectorAll('.pane').forEach(function (pane) {
        if (!pane.dataset.place) { pane.dataset.place = pane.getAttribute('transform'); }
        pane.setAttribute('transform', narrow.matches ? 'translate(8 ' + y + ')'
          : pane.dataset.place);
        y += Number(pane.querySelector('.edge').getAttribute('height')) + 16;
      });
      if (!svg.dataset.box) { svg.dataset.box = svg.getAttribute('viewBox'); }
      svg.setAttribute('viewBox', narrow.matches ? '0 0 462 ' + y : svg.dataset.box);
    });
  }
  var act = {
    play: function () { if (playing) { stop(); } else { start(); } },
    back: function () { go(at - 1); }, forward: function () { go(at + 1); },
    whole: function () {
      if (document.fullscreenElement) { document.exitFullscreen(); }
      else if (document.fullscreenEnabled) { section.requestFullscreen(); } },
    slower: function () { faster(-1); }, faster: function () { faster(1); },
    view: function () {
      view.selectedIndex = (view.selectedIndex + 1) % view.length;
      look(); },
    first: function () { go(0); }, last: function () { go(beats.length - 1); }
  };
  ['play', 'back', 'forward', 'whole'].forEach(function (name) {
    document.getElementById(name).addEventListener('click', act[name]); });
  scrub.addEventListener('input', function () { go(scrub.value - 1); });
  speed.addEventListener('change', function () { faster(0); });
  if (view) { view.addEventListener('change', look); }
  document.addEventListener('keydown', function (e) {
    if (e.ctrlKey || e.altKey || e.metaKey) { return; }
    // A focused control keeps its keys; outside the picture, Home and End belong to the page.
    var own = /^(BUTTON|SELECT|INPUT|A|SUMMARY)$/.test(e.target.tagName);
    var typed = /^(SELECT|INPUT)$/.test(e.target.tagName), inside = section.contains(e.target);
    var name = { ' ': own || e.shiftKey || e.repeat ? '' : 'play', ',': 'back', '.': 'forward',
      v: view && !typed ? 'view' : '', '<': 'slower', '>': 'faster', f: typed || e.repeat ? '' : 'whole',
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
  return { step: function (n) { go(steps[n][0], n); }, steps: steps };
}
