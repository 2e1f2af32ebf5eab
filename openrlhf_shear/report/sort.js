
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.closest("th"), table = head.closest("table"), column = head.cellIndex;
  const up = head.getAttribute("aria-sort") === "descending";
  for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const known = text => text !== "" && text !== "-";
  const compare = (a, b) => {
    if (!known(a) || !known(b)) return known(b) - known(a);  // what is missing stays last
    const order = isNaN(a) || isNaN(b) ? a.localeCompare(b, undefined, {numeric: true}) : a - b;
    return up ? order : -order;
  };
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter(row => !row.classList.contains("block"));
    rows.sort((a, b) => compare(value(a), value(b))).forEach(row => body.append(row));
  }
});
