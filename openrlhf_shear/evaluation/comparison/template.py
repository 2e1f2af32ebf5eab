"""The page's HTML, on the common base of our pages; its tables can be sorted, and it prints."""

STYLE = """
body { max-width: 76rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; overflow-wrap: normal; }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
thead th { border-bottom: 2px solid var(--text); border-top: 2px solid var(--text); }
tbody tr { border-bottom: 1px solid var(--line); } tbody { border-bottom: 2px solid var(--text); }
tr.block th { text-align: left; background: var(--band); }
tr.block th span { position: sticky; left: .7rem; }
th[scope=row] { font-weight: normal; } .words { text-align: left; }
.runs td { vertical-align: top; }
.runs th[scope=row] { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; vertical-align: top; }
.runs .wrap { white-space: normal; min-width: 16rem; }
th button { all: unset; cursor: pointer; font-weight: bold; }
th button:focus-visible { outline: 3px solid var(--link); }
th button::after { content: " ↕"; color: var(--soft); font-weight: normal; }
th[aria-sort=ascending] button::after { content: " ↑"; color: inherit; }
th[aria-sort=descending] button::after { content: " ↓"; color: inherit; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 2rem 1.5rem; }
figure { margin: 0; min-width: 0; } figure img { width: 100%; height: auto; display: block; }
figcaption { font-size: .88rem; } details { margin-top: .3rem; font-size: .88rem; }
details .scroll { max-height: 20rem; overflow: auto; }
@media print { nav, details { display: none; } figure { break-inside: avoid; } }
"""

SCRIPT = """
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
"""

PAGE = """{% extends "base.html" %}
{% block skip %}Skip to the results{% endblock %}
{% block body %}
<header>
<h1>{{ heading }}</h1>
<p>{{ selection }}</p>
<nav aria-label="Sections"><ul>
{% for table in tables %}<li><a href="#table-{{ loop.index }}">{{ table.heading }}</a></li>
{% endfor %}{% if pictures %}<li><a href="#figures">Figures</a></li>
{% endif %}{% if omitted %}<li><a href="#omitted">Left out</a></li>
{% endif %}<li><a href="#runs">Runs</a></li>
</ul></nav>
</header>
<main id="main">
{% if not tables %}<p>There is no table: no run holds an evaluation on benchmarks.</p>{% endif %}
{% for table in tables %}
<section aria-labelledby="table-{{ loop.index }}">
<h2 id="table-{{ loop.index }}">{{ table.heading }}</h2>
<p class="soft">{{ table.caption }}</p>
<div class="scroll" role="region" tabindex="0" aria-label="{{ table.heading }}, table">
<table class="results">
<thead><tr>{% for title in table.header %}<th scope="col"><button type="button">{{ title }}</button></th>
{% endfor %}</tr></thead>
{% for block in table.blocks %}<tbody>
<tr class="block"><th colspan="{{ table.header|length }}" scope="rowgroup"><span>{{ block.model }}</span></th></tr>
{% for row in block.rows %}<tr><th scope="row">{{ row.label }}</th>
{% for cell in row.cells %}<td data-value="{{ cell.value }}">{% if cell.best %}<b>{{ cell.text }}</b>{% else %}
{{- cell.text }}{% endif %}{% if cell.spread %}<span class="soft">{{ cell.spread }}</span>{% endif %}</td>
{% endfor %}<td>{{ row.seeds }}</td></tr>
{% endfor %}</tbody>
{% endfor %}</table>
</div>
</section>
{% endfor %}
{% if pictures %}<h2 id="figures">Figures</h2>
<div class="grid">
{% for picture in pictures %}<figure>
<h3>{{ picture.heading }}</h3>
{% if picture.place %}<p class="soft" style="margin: 0">{{ picture.place }}</p>{% endif %}
<picture><source media="(prefers-color-scheme: dark)" srcset="{{ picture.dark }}">
<img src="{{ picture.light }}" width="{{ picture.width }}" height="{{ picture.height }}"
     alt="{{ picture.heading }}. Its numbers are in the list below."></picture>
<figcaption>{{ picture.caption }}</figcaption>
<details><summary>Numbers ({{ picture.file }}.csv)</summary>
<div class="scroll" role="region" tabindex="0" aria-label="{{ picture.heading }}, numbers"><table>
<thead><tr>{% for title in picture.header %}<th scope="col">{{ title }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in picture.rows %}<tr>{% for value in row %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></details>
</figure>
{% endfor %}</div>{% endif %}
{% if omitted %}<h2 id="omitted">Left out</h2>
<p>These figures were not made, because the runs do not hold what they show.</p>
<ul>{% for omission in omitted %}<li><b>{{ omission.heading }}</b>: {{ omission.reason }}.</li>
{% endfor %}</ul>{% endif %}
<h2 id="runs">Runs</h2>
<div class="scroll" role="region" tabindex="0" aria-label="Runs, table">
<table class="runs">
<thead><tr>{% for title in run_header %}<th scope="col"{% if loop.index < 5 or loop.last %} class="words"{% endif %}>
<button type="button">{{ title }}</button></th>
{% endfor %}</tr></thead>
<tbody>{% for run in runs %}<tr><th scope="row">{{ run.folder }}</th>
{% for value in run.cells %}<td{% if loop.index < 4 %} class="words"{% endif %}>{{ value }}</td>{% endfor %}
<td class="words wrap">{{ run.notes }}</td></tr>
{% endfor %}</tbody></table>
</div>
</main>
{% endblock %}
"""
