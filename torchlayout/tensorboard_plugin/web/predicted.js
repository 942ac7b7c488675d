// What the planner said of a layout beside what was measured.

const MOST_ROWS = 64;

class PredictedView {
  constructor(tip) {
    this.title = "Predicted";
    this.tip = tip;
    this.root = el("div");
  }

  fill({ run, window, reply }) {
    const found = reply.breakdown;
    const parts = found ? [this.comparison(found), remarks(reply), this.pipeline(found), this.causes(found)] : [];
    refill(this.root, missing(run, window, reply), parts);
  }

  comparison(found) {
    const traced = mean(found.steps.map((step) => step.seconds)), untraced = found.untraced_seconds;
    if (!traced) return null;
    const measured = Object.fromEntries(Object.entries(found.mean).map(([name, part]) => [name, part * traced]));
    const { seconds: foretold, shares } = found.predicted ?? {};
    const off = foretold / (untraced ?? traced) - 1;
    const steps = `${found.steps.length > 1 ? "mean of " : ""}${stepsInWords(found).toLowerCase()}`;
    const slower = known(untraced) ? `${signed(traced / untraced - 1)} against untraced` : null;
    return section("Predicted beside measured",
      el("dl", { class: "tiles" }, foretold ? tile("Predicted", seconds(foretold)) : null,
        known(untraced) ? tile("Measured, untraced", seconds(untraced), el("span", { title: UNTRACED }, "median of the other steps")) : null, tile("Measured, traced", seconds(traced), steps, slower),
        foretold ? tile("Off by", signed(off), `the prediction is too ${off < 0 ? "fast" : "slow"}`, `against ${known(untraced) ? "untraced steps" : "traced steps, which the profiler slows"}`) : null),
      foretold ? null : el("p", {}, `Nothing was predicted for this run${found.notes.length ? ": the notes below may say why" : ""}.`),
      this.bars([foretold ? ["predicted", shares, foretold] : null, known(untraced) ? ["measured, untraced", { whole: untraced }, untraced] : null, ["measured, traced", measured, traced]].filter(Boolean)),
      this.table(shares, measured, traced),
      el("p", { class: "note spaced" }, "Parts are measured in traced steps only, and what the profiler adds is among them."));
  }

  bars(entries) {
    const fraction = (shares, total) => Object.fromEntries(Object.entries(shares).map(([name, value]) => [name, value / total]));
    const rows = entries.map(([label, shares, total]) => ({ ran: true, layout: { label, shares: fraction(shares, total), step_seconds: { median: total } } }));
    const longest = greatest(rows.map((row) => row.layout.step_seconds.median));
    const all = rows.map((row) => folded(row.layout.shares));
    return el("div", {}, el("p", { class: "note" }, legend(partsIn(all))), el("ol", { class: "bars" }, rows.map(({ layout }, index) => el("li", {},
      el("span", {}, layout.label),
      stackedBar(all[index], layout.step_seconds.median / longest, { tabindex: "0", "aria-label": `${layout.label}: ${inWords(all[index])}`, on: this.tip.on(() => shareLines(layout.label, layout.shares, percent)) }),
      el("span", { class: "value" }, seconds(layout.step_seconds.median))))));
  }

  table(predicted, measured, took) {
    const all = { ...predicted, ...measured };
    const order = partsIn([folded(all)]).map(([key]) => key);
    const place = (name) => order.indexOf(name.split("/")[0]);
    const names = Object.keys(all).filter((name) => (measured[name] ?? 0) + (predicted?.[name] ?? 0) > 0);
    names.sort((a, b) => place(a) - place(b) || (measured[b] ?? 0) - (measured[a] ?? 0));
    const part = (name) => el("span", { class: "key" }, swatch(name.split("/")[0]), name.replace("/", ": "));
    if (!predicted) return figureTable(["Part of the step", "Measured, traced", "Of the traced step"], names.map((name) => [part(name), seconds(measured[name]), percent(measured[name] / took)]), 1);
    const rows = names.map((name) => {
      const [before, after] = [predicted[name] ?? 0, measured[name] ?? 0];
      return [part(name), seconds(before), seconds(after), signed((before - after) / took)];
    });
    return figureTable(["Part of the step", "Predicted", "Measured, traced", "Difference, of the traced step"], rows, 1);
  }

  pipeline(found) {
    if (!found.pipeline) return null;
    const { bubble, schedule, by_rank: byRank } = found.pipeline;
    const top = greatest(Object.values(byRank), Math.max(bubble ?? 0, schedule ?? 0, 1e-9));
    const bar = (name, value, key) => el("li", {}, el("span", {}, name), stackedBar({ [key]: 1 }, value / top, { "aria-label": `${name}: ${percent(value)}` }), el("span", { class: "value" }, percent(value)));
    const unmeasured = el("li", {}, el("span", {}, "measured"), el("span", {}, "not measured: some ranks of the pipeline were not traced"));
    const ranks = Object.entries(byRank);
    return section("Pipeline bubble", el("p", { class: "note" }, "Idle fractions of the pipeline's time, from its first forward to its last backward; the schedule's is what its order alone leaves idle."),
      el("ol", { class: "bars" }, known(schedule) ? bar("schedule", schedule, "rest") : null, known(bubble) ? bar("measured", bubble, "bubble") : unmeasured, ranks.length > 1 ? ranks.slice(0, MOST_ROWS).map(([rank, value]) => bar(`rank ${rank}`, value, "bubble")) : null));
  }

  causes(found) {
    return found.causes.length ? section("Where its time went", causeList(found.causes.map((cause) => cause.sentence))) : null;
  }
}

function signed(fraction) {
  const words = percent(Math.abs(fraction));
  return words === "0.0%" ? words : `${fraction < 0 ? "\u2212" : "+"}${words}`;
}
