// What the server is asked, each thing once until the user reads everything again.

class Source {
  constructor() {
    this.known = new Map();
  }

  forget() {
    this.known.clear();
  }

  runs() { return this.ask("runs", {}); }
  breakdown(run, window) { return this.ask("breakdown", { run: run.label, window }); }
  timeline(run, window, step) { return this.ask("timeline", { run: run.label, window, step }); }

  // The answer, or {notes} where there is none: a view shows what there is and never fails.
  ask(route, query) {
    const address = `${route}?${new URLSearchParams(query)}`;
    if (!this.known.has(address)) this.known.set(address, this.fetched(address));
    return this.known.get(address);
  }

  async fetched(address) {
    try {
      const answer = await fetch(new URL(address, import.meta.url), { cache: "no-store" });
      return await answer.json();
    } catch (error) {
      this.known.delete(address);
      return { notes: [`TensorBoard does not answer: ${error.message}`] };
    }
  }
}
