// The timeline of a step on a canvas: one lane a rank, above what it did, below its collectives. Only what is in sight
// is looked up and drawn, once a frame.

const AXIS = 24, GUTTER = 66, TALLEST = 540;
const ROOMY = { lane: 32, heights: [18, 7], font: 11 }, DENSE = { lane: 20, heights: [11, 4], font: 0 };
const ROOMY_LANES = 32;
const CLOSEST = 0.01; // microseconds across the whole width

class Timeline {
  constructor(tip) {
    this.tip = tip;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.spacer = el("div", { class: "spacer" });
    this.scroller = el("div", { class: "lanes", tabindex: "0", role: "application", "aria-label": "Timeline of all ranks", "aria-describedby": "timeline-keys" }, this.canvas, this.spacer);
    this.said = el("p", { class: "unseen", role: "status" });
    this.range = el("span", { class: "count" });
    this.legend = el("p", { class: "note" });
    const button = (sign, name, act) => el("button", { type: "button", class: "plain-button", title: name, "aria-label": name, on: { click: act } }, sign);
    this.root = el("div", { class: "timeline" },
      el("div", { class: "toolbar" },
        el("span", { class: "switches" },
          button("\u2212", "Zoom out", () => this.zoom(2)), button("+", "Zoom in", () => this.zoom(0.5)), button("All", "Whole step", () => this.all()),
          button("\u2190", "Earlier", () => this.pan(-0.4)), button("\u2192", "Later", () => this.pan(0.4))),
        this.range),
      this.legend, this.scroller,
      el("p", { class: "note under" }, "The colour of a micro-batch covers the idle moments inside it too; the shares of the step count those as idle."),
      el("p", { class: "note", id: "timeline-keys" }, "Drag to zoom, Shift and drag to move, double-click for all. The wheel zooms with Ctrl, or once the timeline has the focus; over the ranks it scrolls. Keys: arrows go through the events, + and \u2212 zoom, 0 shows all, Enter zooms to the event."),
      this.said);
    this.lanes = [];
    new TimelineInput(this);
    this.scroller.addEventListener("scroll", () => this.redraw(), { passive: true });
    new ResizeObserver(() => this.redraw()).observe(this.scroller);
  }

  show(timeline) {
    this.timeline = timeline;
    this.lanes = lanesOf(timeline);
    this.whole = lastEnd(this.lanes);
    this.style = this.lanes.length <= ROOMY_LANES ? ROOMY : DENSE;
    this.full = AXIS + this.lanes.length * this.style.lane + 4;
    this.height = Math.min(TALLEST, this.full);
    this.scroller.style.height = `${this.height + 2}px`; // with its border
    this.spacer.style.height = `${this.full - this.height}px`;
    this.current = null;
    this.repaint();
    const present = timeline.kinds.filter((_, kind) => this.lanes.some((lane) => lane.tracks.some((track) => track.kinds.includes(kind))));
    refill(this.legend, present.map((kind) => el("span", { class: "key" }, swatch(kind.replace(/[^a-z]/g, "")), kind)));
    this.scroller.scrollTop = 0;
    this.all();
  }

  // Also where the theme changes: a canvas keeps its colours.
  repaint() {
    if (!this.timeline) return;
    this.colours = kindColours(this.root, this.timeline.kinds);
    this.painter = new RowPainter(Uint32Array.from(this.colours, ({ pixel }) => pixel));
    this.ink = colours(this.root, "--ink", "--soft", "--line", "--accent", "--card");
    this.redraw();
  }

  get width() { return Math.max(1, this.scroller.clientWidth - GUTTER - 1); }
  get scale() { return this.width / (this.to - this.from); }
  timeAt(x) { return this.from + (x - GUTTER) / this.scale; }
  xOf(time) { return GUTTER + (time - this.from) * this.scale; }

  look(from, to) {
    // Not so close that start and end are one number.
    const span = Math.min(this.whole, Math.max(CLOSEST, this.whole * 1e-12, to - from));
    const start = Math.min(Math.max(0, from + (to - from - span) / 2), this.whole - span);
    [this.from, this.to] = [start, start + span];
    this.redraw();
  }

  all() { this.look(0, this.whole); }

  zoom(factor, at = this.middle()) {
    this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(part) {
    const by = (this.to - this.from) * part;
    this.look(this.from + by, this.to + by);
  }

  middle() {
    const event = this.current && this.eventOf(this.current);
    const middle = event ? event[START] + event[DURATION] / 2 : NaN;
    return middle >= this.from && middle <= this.to ? middle : (this.from + this.to) / 2;
  }

  eventOf({ lane, track, index }) { return this.lanes[lane].tracks[track].events[index]; }

  topOf(lane) { return AXIS + lane * this.style.lane - this.scroller.scrollTop; }

  // The event at a place of the canvas: {lane, track, index}, or null.
  hit(x, y) {
    if (x < GUTTER || y < AXIS || !this.lanes.length) return null;
    const lane = Math.floor((y - AXIS + this.scroller.scrollTop) / this.style.lane);
    if (!this.lanes[lane]) return null;
    const track = y - this.topOf(lane) < this.style.heights[0] + 2 ? 0 : 1;
    const index = this.lanes[lane].tracks[track].at(this.timeAt(x), 2 / this.scale);
    return index < 0 ? null : { lane, track, index };
  }

  point(found, x, y) {
    if (!found) { this.tip.hide(); return; }
    const box = this.canvas.getBoundingClientRect();
    this.tip.show(box.left + x, box.top + y, this.linesOf(found));
  }

  linesOf(found) {
    return eventLines(this.timeline, this.lanes[found.lane], this.eventOf(found));
  }

  // Makes an event the current one: in sight, marked, described beside it and read aloud.
  choose(found) {
    this.current = found;
    const event = this.eventOf(found);
    const end = event[START] + event[DURATION], room = (this.to - this.from) * 0.1;
    if (end > this.to || event[START] < this.from) {
      const left = event[START] < this.from ? event[START] - room : Math.min(event[START], end - (this.to - this.from) + room);
      this.look(left, left + this.to - this.from);
    }
    const top = found.lane * this.style.lane;
    const { scrollTop } = this.scroller, page = this.height - AXIS - this.style.lane;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top > scrollTop + page) this.scroller.scrollTop = top - page;
    this.said.textContent = this.linesOf(found).join(", ");
    this.redraw();
    // After the scrolling, which hides tips.
    requestAnimationFrame(() => requestAnimationFrame(() => {
      if (this.current === found) this.point(found, Math.max(GUTTER, this.xOf(event[START])), this.topOf(found.lane) + this.style.lane);
    }));
  }

  clear() {
    this.current = null;
    this.tip.hide();
    this.redraw();
  }

  toRank(rank) {
    const lane = this.lanes.findIndex((one) => one.rank === rank);
    if (lane < 0) return;
    this.scroller.focus();
    const index = Math.max(0, this.lanes[lane].tracks[0].at(this.from, Infinity));
    if (this.lanes[lane].tracks[0].events.length) this.choose({ lane, track: 0, index });
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; if (this.timeline) drawTimeline(this); });
  }
}
