// Puts the page together: one state, one table that owns order and filter, charts that follow it.

function contextOf(report) {
  const layouts = report.layouts;
  const rows = layouts.map(rowOf);
  const speeds = layouts.map((layout) => layout.ratio?.value ?? 0);
  const context = {
    report, layouts, rows, noun: "layouts", heading: "Layout", families: report.families, best: report.verdict.best,
    baseline: report.baseline, fastest: greatest(speeds, 1e-9),
  };
  return Object.assign(context, { columns: columnsOf(context), details: (layout) => details(layout, context) });
}

function mount(root, report) {
  const context = contextOf(report);
  const state = { text: "", hiddenStatuses: new Set(), hiddenFamilies: new Set(), sort: "label", descending: false, selected: null };
  let shown = [];
  let frame = 0;
  const redraw = () => { frame = 0; for (const chart of charts) chart.update(shown, state.selected); };
  const choose = (label) => {
    table.select(label);
    table.open?.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  };
  const charts = [new Scatter(context, choose), new Losses(context, choose), new Breakdown(context, choose)].filter((chart) => chart.usable);
  // Charts follow in the next frame, so that the table answers at once.
  const table = new LayoutTable(context, state, (rows) => { shown = rows; frame ||= requestAnimationFrame(redraw); });
  root.append(
    header(context, themes(() => { inkFigures(root, report.drawn); redraw(); })),
    verdict(context),
    ...[bestBox(context), section("Layouts", table.root)].filter(Boolean),
    el("div", { class: "charts" }, charts.map((chart) => section(chart.title, chart.root))),
    ...[whySlower(context), figures(context), measured(context)].filter(Boolean));
  inkFigures(root, report.drawn);
  state.sort = table.columns.some((column) => column.key === "step") ? "step" : "label";
  table.update();
}
