// Pointer, wheel and keys of the timeline.

const DRAGGED = 4; // pixels from which a press is a drag

class TimelineInput {
  constructor(view) {
    this.view = view;
    const { canvas, scroller } = view;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => this.stop());
    canvas.addEventListener("pointerleave", () => view.tip.hide());
    canvas.addEventListener("dblclick", () => view.all());
    scroller.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    scroller.addEventListener("keydown", (event) => this.key(event));
    scroller.addEventListener("blur", () => view.tip.hide());
  }

  press(event) {
    if (event.button !== 0 || !this.view.timeline) return;
    this.view.scroller.focus({ preventScroll: true });
    // A finger moves what it touches; a mouse marks what is to be seen, as in the charts.
    const pans = event.shiftKey || event.pointerType === "touch";
    this.drag = { x: event.offsetX, y: event.offsetY, from: this.view.from, to: this.view.to, top: this.view.scroller.scrollTop, pans, moved: false };
    this.view.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { view, drag } = this;
    if (!view.timeline) return;
    if (!drag) { view.point(view.hit(event.offsetX, event.offsetY), event.offsetX, event.offsetY); return; }
    const across = event.offsetX - drag.x;
    drag.moved ||= Math.abs(across) > DRAGGED || Math.abs(event.offsetY - drag.y) > DRAGGED;
    if (!drag.moved) return;
    view.tip.hide();
    if (drag.pans) {
      const by = across / view.scale;
      view.look(drag.from - by, drag.to - by);
      if (event.pointerType !== "touch") view.scroller.scrollTop = drag.top - (event.offsetY - drag.y);
    } else {
      view.band = [Math.max(GUTTER, drag.x), Math.max(GUTTER, event.offsetX)];
      view.redraw();
    }
  }

  release(event) {
    const { view, drag } = this;
    const band = view.band;
    this.stop();
    if (!drag) return;
    if (band && Math.abs(band[1] - band[0]) > DRAGGED) {
      const [left, right] = band.map((x) => view.timeAt(x)).sort((a, b) => a - b);
      view.look(left, right);
    } else if (!drag.moved) {
      const found = view.hit(event.offsetX, event.offsetY);
      if (found) view.choose(found);
      else view.clear();
    }
  }

  stop() {
    this.drag = null;
    this.view.band = null;
    this.view.redraw();
  }

  wheel(event) {
    const { view } = this;
    if (!view.timeline) return;
    const inside = event.offsetX >= GUTTER;
    // Without the focus the page scrolls: a timeline that swallows the wheel would be a trap.
    const mine = event.ctrlKey || event.metaKey || (inside && document.activeElement === view.scroller);
    const across = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (mine && across && Math.abs(across) >= Math.abs(event.shiftKey ? 0 : event.deltaY)) view.pan(across / view.width);
    else if (mine) view.zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) / 300), view.timeAt(Math.max(GUTTER, event.offsetX)));
    else return;
    event.preventDefault();
  }

  key(event) {
    const { view } = this;
    if (!view.timeline || event.altKey || event.ctrlKey || event.metaKey) return;
    const acts = {
      "+": () => view.zoom(0.5), "=": () => view.zoom(0.5), "-": () => view.zoom(2), "0": () => view.all(), Escape: () => view.clear(),
      ArrowRight: () => (event.shiftKey ? view.pan(0.2) : this.along(1)), ArrowLeft: () => (event.shiftKey ? view.pan(-0.2) : this.along(-1)),
      ArrowDown: () => this.across(1), ArrowUp: () => this.across(-1), Home: () => this.end(0), End: () => this.end(1),
      Enter: () => this.closer(),
    };
    if (!Object.hasOwn(acts, event.key)) return;
    acts[event.key]();
    event.preventDefault();
  }

  begin() {
    const { view } = this;
    const lane = Math.floor(view.scroller.scrollTop / view.style.lane);
    for (let one = lane; one < view.lanes.length; one++) {
      for (const track of [0, 1]) {
        const { events } = view.lanes[one].tracks[track];
        if (events.length) return { lane: one, track, index: Math.min(view.lanes[one].tracks[track].firstAfter(view.from), events.length - 1) };
      }
    }
    return null;
  }

  along(by) {
    const { view } = this;
    if (!view.current) { const found = this.begin(); if (found) view.choose(found); return; }
    const { lane, track, index } = view.current;
    const next = index + by;
    if (next >= 0 && next < view.lanes[lane].tracks[track].events.length) view.choose({ lane, track, index: next });
  }

  // To the event at the same time in the next track that has any.
  across(by) {
    const { view } = this;
    if (!view.current) { this.along(1); return; }
    const event = view.eventOf(view.current);
    const time = event[START] + event[DURATION] / 2;
    for (let row = 2 * view.current.lane + view.current.track + by; row >= 0 && row < 2 * view.lanes.length; row += by) {
      const [lane, track] = [row >> 1, row & 1];
      const index = view.lanes[lane].tracks[track].at(time, Infinity);
      if (index >= 0) { view.choose({ lane, track, index }); return; }
    }
  }

  end(last) {
    const { view } = this;
    const at = view.current ?? this.begin();
    if (at) view.choose({ ...at, index: last ? view.lanes[at.lane].tracks[at.track].events.length - 1 : 0 });
  }

  closer() {
    const { view } = this;
    if (!view.current) return;
    const event = view.eventOf(view.current);
    const room = Math.max(event[DURATION] * 0.5, CLOSEST);
    view.look(event[START] - room, event[START] + event[DURATION] + room);
    view.choose(view.current);
  }
}
