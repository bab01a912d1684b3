// Zooming: a click spreads the columns of a frame over the whole width; "Escape" or a click on the
// lowest row shows all columns again.
(function () {
  var graph = document.currentScript.closest('svg'), whole = {{ width }}, letter = {{ letter }};
  var frames = Array.prototype.slice.call(graph.querySelectorAll('g[data-x]'));
  function zoom(x, width) {
    frames.forEach(function (frame) {
      var a = +frame.dataset.x, b = +frame.dataset.w, name = frame.dataset.n;
      var left = Math.max(0, (a - x) / width * whole);
      var right = Math.min(whole, (a + b - x) / width * whole);
      var rect = frame.querySelector('rect'), text = frame.querySelector('text');
      var room = Math.floor((right - left - 6) / letter);
      frame.style.display = right - left > {{ narrowest }} ? '' : 'none';
      rect.setAttribute('x', left);
      rect.setAttribute('width', Math.max(0, right - left));
      text.setAttribute('x', left + 3);
      text.textContent = room < 3 ? '' : name.length > room ? name.slice(0, room - 2) + '..' : name;
    });
  }
  frames.forEach(function (frame) {
    frame.addEventListener('click', function () { zoom(+frame.dataset.x, +frame.dataset.w); });
  });
  addEventListener('keydown', function (e) { if (e.key === 'Escape') { zoom(0, whole); } });
})();
