// The columns of the table: what sorts them, what they show, and whether this study has them.

function cell(main, small) {
  return [main, small ? el("small", {}, small) : null];
}

function statusChip(status) {
  return el("span", { class: `status ${status}` }, STATUS_WORDS[status]);
}

function paritySort(layout) {
  return layout.parity ? (layout.parity.loss_difference ?? Infinity) : null;
}

function parityCell(layout) {
  const parity = layout.parity;
  if (!parity) return UNKNOWN;
  const where = parity.loss_step && parity.loss_difference !== 0 ? `, step ${parity.loss_step}` : "";
  return cell(verdictWord(parity.within), exponent(parity.loss_difference) + where);
}

function verdictWord(good) {
  return el("span", { class: good ? "good" : "bad" }, good ? "yes" : "NO");
}

function fairCell(layout) {
  if (!layout.fair) return UNKNOWN;
  const differs = differing(layout.fair);
  if (!differs.length && Object.values(layout.fair).includes(null)) return UNKNOWN;
  return cell(verdictWord(!differs.length), differs.join(", "));
}

function speedCell(layout, context) {
  const ratio = layout.ratio;
  if (!ratio) return UNKNOWN;
  const same = ratio.difference_shown === false ? "no difference shown" : null;
  const notes = layout.label === context.baseline ? ["baseline"] : [interval(ratio), same].filter(Boolean);
  const fill = `${(100 * ratio.value / context.fastest).toFixed(1)}%`;
  return [el("span", { class: "meter", vars: { "--fill": fill } }, times(ratio.value)), notes.map((note) => el("small", {}, note))];
}

// name: heading; value: what sorts; show: what stands in the cell; descending: the first click's order.
function columnsOf(context) {
  const all = [
    { key: "speed", name: "Speed", hint: "against the baseline, above 1 is faster; 95% interval from three repeats on",
      value: (l) => l.ratio?.value, show: (l) => speedCell(l, context), descending: true },
    { key: "step", name: "Step time", hint: "median over repeats, with the range",
      value: (l) => l.step_seconds?.median, show: (l) => cell(seconds(l.step_seconds?.median), range(l.step_seconds)) },
    { key: "predicted", name: "Predicted", hint: "step time by the planner",
      value: (l) => l.predicted?.step_seconds, show: (l) => seconds(l.predicted?.step_seconds) },
    { key: "tokens", name: "Tokens/s", hint: "all devices; below: one device", value: (l) => l.tokens_per_second?.median,
      show: (l) => cell(count(l.tokens_per_second?.median), known(l.tokens_per_second_per_device) ? `${count(l.tokens_per_second_per_device)} a device` : null),
      descending: true },
    { key: "mfu", name: "MFU", hint: "model FLOP/s as a fraction of the peak", value: (l) => l.mfu, show: (l) => percent(l.mfu), descending: true },
    { key: "hfu", name: "HFU", hint: "with recomputation", value: (l) => l.hfu, show: (l) => percent(l.hfu), descending: true },
    { key: "memory", name: "Memory", hint: "peak of the worst rank", value: (l) => l.peak_memory_bytes,
      show: (l) => cell(gibibytes(l.peak_memory_bytes), known(l.peak_memory_rank) ? `rank ${l.peak_memory_rank}` : null) },
    { key: "data", name: "Data", hint: "part of the step that waits for data", value: (l) => l.data_seconds_fraction,
      show: (l) => percent(l.data_seconds_fraction) },
    { key: "bubble", name: "Bubble (schedule)", hint: "idle part of the pipeline by its schedule's formula, not measured", value: (l) => l.bubble_fraction,
      show: (l) => percent(l.bubble_fraction, 0) },
    { key: "parity", name: "Parity", hint: "largest relative difference of the loss from the baseline's", value: paritySort, show: parityCell },
    { key: "fair", name: "Fair", hint: "same data, weights, tokens, optimizer, settings, software", value: (l) => (l.fair ? differing(l.fair).length : null), show: fairCell },
  ];
  const present = all.filter((column) => context.layouts.some((layout) => known(column.value(layout))));
  const reason = { key: "reason", name: "Reason", value: (l) => l.reason, show: (l) => el("span", { class: "reason" }, l.reason ?? "") };
  return present.length ? present : [reason];
}
