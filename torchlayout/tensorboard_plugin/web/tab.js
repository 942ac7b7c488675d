// Puts the tab together: the list of views, the choice of run and step that they share, and reading again.

async function render() {
  document.documentElement.lang = "en";
  document.title = "Layouts";
  const sheet = el("link", { rel: "stylesheet", href: new URL("index.css", import.meta.url) });
  await new Promise((ready) => { sheet.addEventListener("load", ready); sheet.addEventListener("error", ready); document.head.append(sheet); });
  const tab = new Tab();
  document.body.append(tab.root);
  await tab.read();
}

// TensorBoard's own choice of theme, which may differ from the system's; it changes a class of the page around this one.
function followBoard(changed) {
  try {
    const { body } = parent.document;
    if (parent === window) return () => null;
    new parent.MutationObserver(changed).observe(body, { attributes: true, attributeFilter: ["class"] });
    return () => (body.classList.contains("dark-mode") ? "dark" : null);
  } catch {
    return () => null; // a page from elsewhere
  }
}

class Tab {
  constructor() {
    this.source = new Source();
    this.root = el("main", { class: "torchlayout tab" });
    this.tip = new Tip(this.root);
    this.compare = new Compare(this.tip, (view, run) => { this.pickers.choose(run); this.open(view); });
    this.views = { compare: this.compare, step: new StepView(this.tip, this.source), memory: new MemoryView(), predicted: new PredictedView(this.tip) };
    this.pickers = new Pickers(this.source, (choice) => this.fill(choice), (work) => this.busyWhile(work));
    this.theme = themes(() => this.themed(), followBoard(() => { this.theme.apply(); this.themed(); }));
    this.where = el("p", { class: "eyebrow" });
    this.status = el("p", { class: "unseen", role: "status" });
    this.fault = el("div", { role: "alert" });
    this.notes = el("div");
    this.again = el("button", { type: "button", class: "theme", on: { click: () => this.read() } }, "Reload");
    this.tabs = Object.entries(this.views).map(([name, view]) => this.tabOf(name, view));
    this.panels = Object.entries(this.views).map(([name, view]) => el("div", { id: `panel-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: true }, view.root));
    this.root.append(
      el("header", {}, el("div", {}, el("h1", {}, "Layouts"), this.where), el("div", { class: "switches" }, this.again, this.theme)),
      this.status, this.fault, this.notes,
      this.bar = el("div", { class: "tabs", role: "tablist", "aria-label": "Views", on: { keydown: (event) => this.key(event) } }, this.tabs),
      this.pickers.root);
    put(this.root, this.panels);
    // Also of what is drawn later, in a frame or when something is clicked.
    addEventListener("error", (event) => { if (event.error) this.failed(event.error); });
    addEventListener("unhandledrejection", (event) => this.failed(event.reason));
    this.open("compare");
  }

  failed(error) {
    refill(this.fault, el("ul", { class: "notes" }, el("li", {}, `This cannot be shown: ${error?.message ?? error}`)));
  }

  tabOf(name, view) {
    return el("button", { type: "button", role: "tab", id: `tab-${name}`, "data-view": name, "aria-controls": `panel-${name}`, on: { click: () => this.open(name) } }, view.title);
  }

  open(name) {
    this.view = name;
    this.tip.hide();
    this.tabs.forEach((button, index) => {
      const chosen = button.dataset.view === name;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      this.panels[index].hidden = !chosen;
    });
    this.pickers.root.hidden = name === "compare";
    this.pickers.root.classList.toggle("whole-window", name === "predicted"); // which has no steps
    // A hidden canvas has no size, so a view is drawn when it is seen.
    if (this.stale?.has(name)) { this.stale.delete(name); this.busyWhile(() => this.views[name].fill(this.choice)); }
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = this.tabs.at((this.tabs.findIndex((button) => button.dataset.view === this.view) + by) % this.tabs.length);
    this.open(next.dataset.view);
    next.focus();
    event.preventDefault();
  }

  themed() {
    for (const view of Object.values(this.views)) view.themed?.();
  }

  read() {
    return this.busyWhile(() => this.readAgain());
  }

  async readAgain() {
    this.source.forget();
    this.again.disabled = true;
    const reply = await this.source.runs();
    this.again.disabled = false;
    const runs = reply.runs ?? [];
    this.where.textContent = reply.logdir ?? "";
    this.status.textContent = `${whole(runs.length)} runs read`;
    refill(this.notes, noteList(reply.notes), runs.length ? null : empty());
    for (const part of [this.bar, ...this.panels]) part.classList.toggle("gone", !runs.length);
    if (!runs.length) return;
    this.compare.fill(reply);
    await this.pickers.fill(runs);
  }

  // Says that what is seen is about to be replaced, until it is or cannot be.
  async busyWhile(work) {
    const turn = this.turn = (this.turn ?? 0) + 1;
    this.root.setAttribute("aria-busy", "true");
    refill(this.fault);
    try {
      await work();
    } catch (error) {
      this.failed(error);
      throw error;
    } finally {
      if (turn === this.turn) this.root.removeAttribute("aria-busy");
    }
  }

  async fill(choice) {
    this.choice = choice;
    this.stale = new Set(["step", "memory", "predicted"]);
    if (!this.stale.delete(this.view)) return;
    await this.views[this.view].fill(choice);
  }
}

function empty() {
  return section("No runs", el("p", {}, "There is no run under this folder. Start TensorBoard on a run, on a folder of runs or on a study: "), codeBlock("Command", "tensorboard --logdir runs"));
}
