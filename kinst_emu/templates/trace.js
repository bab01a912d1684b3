(function () {
  var box = document.getElementById('search'), said = document.getElementById('found');
  var parts = Array.prototype.slice.call(document.querySelectorAll('details.code'));
  document.querySelector('.search').hidden = false;
  box.addEventListener('input', function () {
    var word = box.value.trim().toLowerCase(), functions = 0, rows = 0;
    parts.forEach(function (part) {
      var own = word && part.dataset.name.toLowerCase().indexOf(word) >= 0, hits = 0;
      Array.prototype.forEach.call(part.querySelectorAll('tbody tr'), function (row) {
        var hit = !word || own || row.textContent.toLowerCase().indexOf(word) >= 0;
        row.hidden = !hit;
        hits += hit;
      });
      part.hidden = !hits;
      part.open = !!word && !own && hits > 0;
      functions += hits > 0;
      rows += hits;
    });
    said.textContent = word ? functions + ' functions, ' + rows + ' instructions' : '';
  });
})();
