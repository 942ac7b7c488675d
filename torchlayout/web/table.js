// The sortable, filterable table of layouts or of runs; on a small screen the style sheet makes each row a card.
// context: rows; noun ("layouts"); columns after name and status; details(layout), what a row opens to; families; best.

// Rows that are in the document at first; the next ones come when their end is scrolled to. All 1,000 at once take
// more than a second to lay out after each click.
const CHUNK = 30;

class LayoutTable {
  constructor(context, state, changed) {
    this.context = context;
    this.state = state;
    this.changed = changed;
    this.columns = [
      { key: "label", name: context.heading, value: (l) => l.label },
      { key: "status", name: "Status", value: (l) => STATUS_WORDS[l.status] },
      ...context.columns,
    ];
    this.body = el("tbody");
    this.nodes = new Map();
    this.end = el("div", { class: "end" });
    this.count = el("p", { class: "count", role: "status" });
    this.headings = this.columns.map((column) => this.heading(column));
    this.root = el("div", {}, this.toolbar(), this.count,
      this.scroll = el("div", { class: context.rows.length > CHUNK ? "scroll long" : "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${context.noun}` },
        el("table", { "aria-rowcount": context.rows.length + 1 },
          el("colgroup", {}, this.columns.map((column) => el("col", { class: `w-${column.key}` }))),
          el("thead", {}, el("tr", {}, this.headings)), this.body), this.end));
    this.watcher = new IntersectionObserver((entries) => {
      if (entries.at(-1).isIntersecting && this.shown < this.rows.length) this.grow();
    }, { root: this.scroll, rootMargin: "400px" });
  }

  heading(column) {
    const button = el("button", { type: "button", title: column.hint, on: { click: () => this.sortBy(column.key) } }, column.name);
    return el("th", { scope: "col", "data-key": column.key }, button);
  }

  toolbar() {
    const { state } = this;
    const search = el("input", {
      type: "search", id: "filter", placeholder: "Filter: tp2 -ckpt memory", "aria-label": `Filter ${this.context.noun} by words`,
      autocomplete: "off", spellcheck: "false",
      on: { input: (event) => { state.text = event.target.value; this.update(); } },
    });
    const sorter = el("select", { id: "sorter", on: { change: (event) => this.sortBy(event.target.value) } },
      this.columns.map((column) => el("option", { value: column.key }, column.name)));
    this.sorter = sorter;
    return el("div", { class: "toolbar" }, search, el("label", { class: "sorter" }, "Sort by ", sorter),
      this.switches("Status", "status", state.hiddenStatuses, (key) => STATUS_WORDS[key]),
      this.switches("Kind", "family", state.hiddenFamilies, (key) => [dot(this.context.families[key]), key]));
  }

  switches(title, field, hidden, shown) {
    const found = new Map();
    for (const { layout } of this.context.rows) found.set(layout[field], (found.get(layout[field]) ?? 0) + 1);
    if (found.size < 2) return null;
    const flip = (event, key) => {
      const on = hidden.delete(key) || !hidden.add(key);
      event.currentTarget.setAttribute("aria-pressed", String(on));
      this.update();
    };
    return el("div", { class: "switches", role: "group", "aria-label": title }, [...found].map(([key, number]) =>
      el("button", { type: "button", "aria-pressed": "true", on: { click: (event) => flip(event, key) } },
        shown(key), el("span", { class: "number" }, String(number)))));
  }

  rowNode(row) {
    const { layout } = row;
    const open = el("button", {
      type: "button", class: "label", "aria-expanded": "false", on: { click: () => this.select(layout.label) },
    }, dot(this.context.families[layout.family]), el("span", {}, broken(layout.label)));
    const first = el("th", { scope: "row" }, open, layout.label === this.context.best ? el("span", { class: "badge" }, "best") : null);
    const status = el("td", { "data-name": "Status" }, statusChip(layout.status), row.ran && layout.reason ? el("small", {}, layout.reason) : null);
    const rest = this.columns.slice(2);
    const cells = row.ran
      ? rest.map((column) => el("td", { "data-name": column.name, class: `c-${column.key}` }, column.show(layout)))
      : [el("td", { colspan: rest.length, class: "reason" }, layout.reason ?? "")];
    return el("tr", { class: layout.label === this.context.best ? "best" : null, on: { click: (event) => this.clicked(event, layout.label) } }, first, status, cells);
  }

  // The whole row does what its name does. Who selects text means the text: a drag opens nothing, and the second click
  // of a double click takes back what the first did.
  clicked(event, label) {
    const text = getSelection();
    if (event.target.closest("a, button, input, select, summary") || event.detail > 2) return;
    if (event.detail < 2 && !text.isCollapsed) return;
    const { anchorNode, anchorOffset, focusNode, focusOffset, isCollapsed } = text;
    this.select(label);
    if (!isCollapsed) text.setBaseAndExtent(anchorNode, anchorOffset, focusNode, focusOffset); // rows are put in anew
  }

  sortBy(key) {
    const { state } = this;
    const column = this.columns.find((one) => one.key === key);
    state.descending = state.sort === key ? !state.descending : Boolean(column.descending);
    state.sort = key;
    this.update();
  }

  select(label) {
    this.state.selected = this.state.selected === label ? null : label;
    this.update();
  }

  update() {
    const { state, context } = this;
    const column = this.columns.find((one) => one.key === state.sort);
    this.rows = ordered(filtered(context.rows, state), column.value, state.descending);
    this.open?.querySelector(".label").setAttribute("aria-expanded", "false");
    this.open = null;
    const selected = this.rows.findIndex((row) => row.layout.label === state.selected);
    this.shown = 0;
    this.body.replaceChildren();
    this.grow(Math.max(CHUNK, selected + 1));
    this.mark(column);
    const total = context.rows.length;
    this.count.textContent = `${this.rows.length === total ? "" : `${whole(this.rows.length)} of `}${whole(total)} ${context.noun}`;
    this.changed(this.rows);
  }

  // More at a time the further down: the last of 1,000 rows are nine steps away.
  grow(number = Math.max(CHUNK, Math.ceil(this.shown / 2))) {
    const next = this.rows.slice(this.shown, this.shown + number);
    this.shown += next.length;
    put(this.body, next.map((row) => this.nodesOf(row)));
    // An observer tells of changes only: observed anew, it tells as well when the end is still in sight.
    this.watcher.unobserve(this.end);
    this.watcher.observe(this.end);
  }

  nodesOf(row) {
    if (!this.nodes.has(row)) this.nodes.set(row, this.rowNode(row));
    const node = this.nodes.get(row);
    if (row.layout.label !== this.state.selected) return [node];
    this.open = node;
    node.querySelector(".label").setAttribute("aria-expanded", "true");
    return [node, el("tr", { class: "detail" }, el("td", { colspan: this.columns.length }, this.context.details(row.layout)))];
  }

  mark(column) {
    this.sorter.value = column.key;
    for (const heading of this.headings) {
      const sorted = heading.dataset.key === column.key;
      heading.toggleAttribute("data-sorted", sorted);
      if (sorted) heading.setAttribute("aria-sort", this.state.descending ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
  }
}
