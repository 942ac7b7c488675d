// One step of one run: where its time went, when and on which rank.

class StepView {
  constructor(tip, source) {
    this.title = "Step";
    this.tip = tip;
    this.source = source;
    this.timeline = new Timeline(tip);
    this.above = el("div");
    this.below = el("div");
    this.notes = el("div");
    this.lanes = section("Timeline", this.timeline.root, this.notes);
    this.root = el("div", {}, this.above, this.lanes, this.below);
  }

  themed() { this.timeline.repaint(); }

  async fill({ run, window, step, reply }) {
    const found = reply.breakdown;
    const one = found?.steps.find((entry) => entry.step === step);
    this.above.replaceChildren(...[missing(run, window, reply), one ? this.summary(found, one) : null].filter(Boolean));
    this.below.replaceChildren(...(found ? [one ? this.ranks(one) : null, tables(found), remarks(reply)].flat().filter(Boolean) : []));
    const asked = this.asked = `${run.label} ${window} ${step}`;
    this.lanes.hidden = step === null;
    if (step === null) return;
    this.timeline.root.hidden = true;
    this.notes.replaceChildren(el("p", { class: "note", role: "status" }, "Reading the timeline ..."));
    const answer = await this.source.timeline(run, window, step);
    if (asked !== this.asked) return; // another was chosen meanwhile
    const lanes = answer.timeline?.lanes ?? [];
    this.notes.replaceChildren(...[noteList(answer.notes)].filter(Boolean));
    this.lanes.hidden = !lanes.length && !answer.notes?.length;
    this.timeline.root.hidden = !lanes.length;
    if (lanes.length) this.timeline.show(answer.timeline);
  }

  summary(found, one) {
    const shares = meanShares(one);
    const parts = folded(shares);
    const worst = one.ranks.reduce((slow, rank) => ((rank.seconds ?? 0) > (slow?.seconds ?? 0) ? rank : slow), null);
    const overlap = mean(one.ranks.map((rank) => rank.overlap)), flops = mean(one.ranks.map((rank) => rank.flops_per_second));
    const tile = (name, value, small) => value !== UNKNOWN && el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value, small ? el("small", {}, small) : null));
    const lines = () => shareLines(`Step ${one.step}`, shares, percent);
    return section(`Step ${one.step}`,
      el("dl", { class: "tiles" },
        tile("Time", seconds(one.seconds), worst && one.ranks.length > 1 ? `longest on rank ${worst.rank}` : null),
        tile("Computing", percent(parts.compute ?? null)), tile("Overlap", percent(overlap, 0), "of communication is hidden"),
        tile("Bubble", percent(found.pipeline?.bubble ?? null), `of the pipeline's time${known(found.pipeline?.schedule) ? `; schedule: ${percent(found.pipeline.schedule)}` : ""}`),
        tile("While computing", decimal(flops, "FLOP/s"), "a rank, mean")),
      el("div", { class: "large" }, stackedBar(parts, 1, { tabindex: "0", "aria-label": inWords(parts), on: this.tip.on(lines) })),
      el("p", { class: "note" }, legend(partsIn([parts]).map(([key, name]) => [key, `${name} ${percent(parts[key])}`]))),
      found.causes.length ? [el("h3", {}, "Where its time went"), causeList(found.causes.map((cause) => cause.sentence))] : null);
  }

  ranks(one) {
    const rows = one.ranks.filter((rank) => rank.seconds).map((rank) => {
      const shares = Object.fromEntries(Object.entries(rank.shares).map(([name, value]) => [name, value / rank.seconds]));
      return { ran: true, rank: rank.rank, layout: { label: `rank ${rank.rank}`, shares, step_seconds: { median: rank.seconds } } };
    });
    if (rows.length < 2) return null;
    const bars = new Breakdown({ rows }, (label) => this.timeline.toRank(rows.find((row) => row.layout.label === label).rank));
    bars.update(rows, null);
    return section("Ranks", bars.root);
  }
}

function mean(values) {
  const found = values.filter(known);
  return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null;
}

// Fractions of the step, over its ranks.
function meanShares(one) {
  const total = one.ranks.reduce((sum, rank) => sum + (rank.seconds ?? 0), 0) || 1;
  const shares = {};
  for (const rank of one.ranks) for (const [name, value] of Object.entries(rank.shares)) shares[name] = (shares[name] ?? 0) + value / total;
  return shares;
}

// Why there is nothing to see, and what to do about it.
function missing(run, window, reply) {
  if (reply.breakdown) return null;
  const notes = noteList(reply.notes);
  if (!window) return section("No traces", el("p", {}, "This run was not profiled. Its configuration says which steps are, in [profile]: for example steps = 2."), notes);
  return section("Not analysed", el("p", {}, "There are traces, but no analysis of them that can be read. This makes it:"), codeBlock("Command", run.command), notes);
}

function remarks(reply) {
  const notes = noteList([...reply.notes, ...reply.breakdown.notes]);
  return notes ? section("Notes on these traces", notes) : null;
}

// Tables of the whole window: collectives, stages, kernels.
function tables(found) {
  const collectives = found.collectives.map((one) => [one.collective, one.axis, count(one.count), count(one.group_size), bytes(one.bytes), seconds(one.seconds), seconds(one.exposed_seconds), decimal(one.bus_bytes_per_second, "B/s")]);
  const stages = found.stages.map((one) => [count(one.stage), count(one.rank), count(one.micro_batches), seconds(one.forward_seconds), seconds(one.backward_seconds), seconds(one.weight_seconds)]);
  const kernels = found.kernels.map((one) => [el("span", { class: "mono" }, one.name ?? UNKNOWN), one.class, count(one.count), seconds(one.seconds)]);
  const more = found.kernels_in_all - kernels.length;
  return [
    collectives.length ? section("Collectives", figureTable(["Collective", "Axis", "Calls", "Ranks", "Bytes", "Time", "Not hidden", "Bus bandwidth"], collectives, 2)) : null,
    stages.length > 1 ? section("Stages", figureTable(["Stage", "Rank", "Micro-batches", "Forward", "Backward", "Weights"], stages, 0)) : null,
    kernels.length ? section("Kernels", el("details", {}, el("summary", {}, `${whole(found.kernels_in_all)} names, longest first`),
      figureTable(["Name", "Class", "Calls", "Time"], kernels, 2), more > 0 ? el("p", { class: "note" }, `and ${whole(more)} more in breakdown.json`) : null)) : null,
  ];
}

function figureTable(headings, rows, words) {
  const cell = (value, index) => el(index ? "td" : "th", { scope: index ? null : "row", class: index < words ? "word" : null }, value ?? UNKNOWN);
  return el("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": headings.join(", ") }, el("table", { class: "figures-table" },
    el("thead", {}, el("tr", {}, headings.map((name, index) => el("th", { scope: "col", class: index < Math.max(1, words) ? "word" : null }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}
