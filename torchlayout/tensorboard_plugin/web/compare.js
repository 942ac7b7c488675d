// Runs side by side.

const KEPT = ["tokens", "step", "mfu", "memory", "parity"];

function runColumns(context, tip) {
  const found = new Map(columnsOf(context).map((column) => [column.key, column]));
  const layout = { key: "layout", name: "Layout", value: (run) => run.layout, show: (run) => (run.layout ? broken(run.layout) : UNKNOWN) };
  const breakdown = {
    key: "breakdown", name: "Breakdown", hint: "sorts by the part of the step that computes", descending: true,
    value: (run) => (run.shares ? folded(run.shares).compute ?? 0 : null), show: (run) => breakdownCell(run, tip),
  };
  const traced = context.layouts.some((run) => run.shares);
  // The names of a study's runs begin with their layouts.
  const named = context.layouts.some((run) => run.layout && !run.study && !run.label.includes(run.layout));
  return [named ? layout : null, ...KEPT.slice(0, 4).map((key) => found.get(key)), traced ? breakdown : null, ...KEPT.slice(4).map((key) => found.get(key))].filter(Boolean);
}

function breakdownCell(run, tip) {
  if (!run.shares) return el("small", {}, run.windows.length ? "not analysed" : UNKNOWN);
  const parts = folded(run.shares);
  const lines = () => shareLines(run.label, run.shares, percent);
  return stackedBar(parts, 1, { tabindex: "0", "aria-label": `${run.label}: ${inWords(parts)}`, on: tip.on(lines) });
}

function runRow(run, place) {
  const row = rowOf(run, place);
  return { ...row, text: `${row.text} ${run.layout ?? ""} ${run.study ?? ""}`.toLowerCase(), ran: known(run.step_seconds) || known(run.shares) };
}

class Compare {
  constructor(tip, show) {
    this.title = "Compare";
    this.tip = tip;
    this.show = show;
    this.state = { text: "", hiddenStatuses: new Set(), hiddenFamilies: new Set(), sort: "step", descending: false, selected: null };
    this.root = el("div");
  }

  fill(reply) {
    const context = {
      layouts: reply.runs, rows: reply.runs.map(runRow), families: reply.families, noun: "runs", heading: "Run",
      best: null, baseline: null, fastest: 1,
    };
    context.columns = runColumns(context, this.tip);
    context.details = (run) => this.details(run);
    if (!context.columns.some((column) => column.key === this.state.sort)) this.state.sort = "label";
    const table = new LayoutTable(context, this.state, () => {});
    table.root.querySelector("#filter").value = this.state.text;
    const parts = partsIn(reply.runs.filter((run) => run.shares).map((run) => folded(run.shares)));
    refill(this.root, section("Runs", table.root, parts.length ? el("p", { class: "note legend" }, legend(parts)) : null));
    table.update();
  }

  details(run) {
    const facts = [["Study", run.study], ["Ranks", run.world], ["Device", run.device], ["Steps", run.steps], ["Fair", run.fair ? fairWords(run.fair) : null], ["Traces", run.windows.map((name) => name.replace("_", " ")).join(", ") || null]];
    const open = (view, name) => el("button", { type: "button", class: "plain-button", on: { click: () => this.show(view, run) } }, name);
    return el("div", { class: "details" },
      el("dl", { class: "tiles small" }, facts.filter(([, value]) => known(value)).map(([name, value]) => el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, String(value))))),
      run.causes.length ? [el("h3", {}, "Where its time went"), causeList(run.causes)] : null,
      run.shares ? el("p", { class: "switches spaced" }, open("step", "Open the step"), open("memory", "Memory"), open("predicted", "Predicted beside measured")) : null,
      run.windows.length && !run.analysed ? [el("p", {}, "Its traces are not analysed yet. This does it:"), codeBlock("Command", run.command)] : null,
      noteList(run.notes));
  }
}

function fairWords(fair) {
  const differs = differing(fair);
  return differs.length ? `NO: ${differs.join(", ")}` : Object.values(fair).includes(null) ? UNKNOWN : "yes";
}

function causeList(sentences) {
  return el("ul", { class: "reasons" }, sentences.map((sentence) => el("li", {}, sentence)));
}

function noteList(notes) {
  return notes?.length ? el("ul", { class: "notes", "aria-label": "What could not be read" }, notes.map((note) => el("li", {}, note))) : null;
}
