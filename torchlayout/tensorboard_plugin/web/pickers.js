// Which run, which traces of it and which step the views of one step show.

class Pickers {
  // changed(choice): {run, window, step, reply}, with what the server says of the window; busyWhile(work) shows that.
  constructor(source, changed, busyWhile) {
    this.source = source;
    this.changed = changed;
    this.busyWhile = busyWhile;
    this.run = this.select("pick-run", () => this.choose(this.runs.find((run) => run.label === this.run.value)));
    this.window = this.select("pick-window", () => this.open(this.window.value));
    this.step = this.select("pick-step", () => this.tell());
    const move = (by) => {
      const index = this.step.selectedIndex + by;
      if (index < 0 || index >= this.step.options.length) return;
      this.step.selectedIndex = index;
      this.tell();
    };
    const button = (sign, name, by) => el("button", { type: "button", class: "plain-button", "aria-label": name, title: name, on: { click: () => move(by) } }, sign);
    this.windows = el("label", { class: "picker" }, el("span", {}, "Traces"), this.window);
    this.root = el("div", { class: "pickers" },
      el("label", { class: "picker wide" }, el("span", {}, "Run"), this.run), this.windows,
      el("label", { class: "picker" }, el("span", {}, "Step"), this.step),
      this.buttons = el("span", { class: "switches" }, button("\u2039", "Previous step", -1), button("\u203a", "Next step", 1)));
  }

  select(id, changed) {
    return el("select", { id, on: { change: changed } });
  }

  // All runs; the one that was chosen stays so, else the fastest with an analysis.
  fill(runs) {
    this.runs = [...runs].sort((a, b) => NATURAL.compare(a.label, b.label));
    const first = (test) => this.runs.find(test);
    const fastest = ordered(this.runs.filter((run) => run.analysed).map((layout, place) => ({ layout, place })), (run) => run.step_seconds?.median, false)[0]?.layout;
    const kept = first((run) => run.label === this.choice?.run.label) ?? fastest ?? first((run) => run.windows.length) ?? this.runs[0];
    const option = (run) => el("option", { value: run.label }, run.layout && !run.label.includes(run.layout) ? `${run.label} (${run.layout})` : run.label);
    const traced = this.runs.filter((run) => run.windows.length), rest = this.runs.filter((run) => !run.windows.length);
    const group = (name, some) => (some.length ? el("optgroup", { label: name }, some.map(option)) : null);
    refill(this.run, group("with traces", traced), group("without traces", rest));
    return kept ? this.choose(kept) : Promise.resolve();
  }

  choose(run) {
    this.picked = run;
    this.run.value = run.label;
    const last = run.windows.at(-1);
    refill(this.window, run.windows.map((name) => el("option", { value: name }, name.replace("_", " "))));
    this.windows.hidden = run.windows.length < 2;
    return this.open(run.windows.includes(this.choice?.window) ? this.choice.window : last);
  }

  open(window) {
    return this.busyWhile(() => this.read(window));
  }

  async read(window) {
    const run = this.picked;
    if (window) this.window.value = window;
    const reply = window ? await this.source.breakdown(run, window) : { breakdown: null, steps: [], memory: [], notes: [] };
    if (run !== this.picked || (window && window !== this.window.value)) return; // another was chosen meanwhile
    const before = Number(this.step.value);
    const steps = reply.steps ?? [];
    refill(this.step, steps.map((step) => el("option", { value: String(step) }, String(step))));
    if (steps.includes(before)) this.step.value = String(before);
    this.step.parentElement.hidden = !steps.length;
    this.buttons.hidden = steps.length < 2;
    this.reply = reply;
    await this.tell();
  }

  tell() {
    const step = this.step.value === "" ? null : Number(this.step.value);
    this.choice = { run: this.picked, window: this.window.value || null, step, reply: this.reply };
    return this.busyWhile(() => this.changed(this.choice));
  }
}
