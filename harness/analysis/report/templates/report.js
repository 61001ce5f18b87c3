"use strict";
(function () {
  // A head's button sorts its table: up, down, as it was. What was not measured stays last.
  function sort(table, column, direction) {
    var body = table.tBodies[0];
    var sign = direction === "descending" ? -1 : 1;
    var rows = Array.prototype.slice.call(body.rows);
    rows.sort(function (a, b) {
      var order = a.getAttribute("data-n") - b.getAttribute("data-n");
      if (!direction) return order;
      var x = a.cells[column].getAttribute("data-v");
      var y = b.cells[column].getAttribute("data-v");
      if (x === null || y === null) return (x === null) - (y === null) || order;
      var numeric = a.cells[column].className === "number";
      var found = numeric ? x - y : x.localeCompare(y, undefined, { numeric: true });
      return sign * found || order;
    });
    rows.forEach(function (row) { body.appendChild(row); });
  }
  document.querySelectorAll("thead button").forEach(function (button) {
    button.addEventListener("click", function () {
      var head = button.parentNode;
      var table = head.closest("table");
      var next = { "": "ascending", ascending: "descending", descending: "" };
      var direction = next[head.getAttribute("aria-sort") || ""];
      table.querySelectorAll("th[aria-sort]").forEach(function (th) { th.removeAttribute("aria-sort"); });
      if (direction) head.setAttribute("aria-sort", direction);
      sort(table, head.cellIndex, direction);
    });
  });
  // Paper has nothing to open.
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
  });
})();
