// The events of a step as the timeline looks them up: tracks in typed arrays, found by binary search.

const START = 0, DURATION = 1, TRACK = 2, KIND = 3, NAME = 4, STAGE = 5, MICRO_BATCH = 6, BYTES = 7;

class Track {
  constructor(events) {
    this.events = events;
    this.starts = Float64Array.from(events, (event) => event[START]);
    this.ends = Float64Array.from(events, (event) => event[START] + event[DURATION]);
    this.kinds = Uint8Array.from(events, (event) => event[KIND]);
    // Collectives overlap, so ends are in no order; the largest so far are, and can be searched.
    this.reach = Float64Array.from(this.ends);
    for (let index = 1; index < this.reach.length; index++) this.reach[index] = Math.max(this.reach[index], this.reach[index - 1]);
  }

  // The first event that may be seen from this time on.
  firstAfter(time) {
    return lowest(this.reach, (reach) => reach > time);
  }

  // The event at a time, the last started of several; or the nearest one within `slack`.
  at(time, slack) {
    const next = lowest(this.starts, (start) => start > time);
    for (let index = next - 1; index >= 0 && this.reach[index] >= time - slack; index--) {
      if (this.ends[index] >= time) return index;
    }
    const before = next - 1;
    if (before >= 0 && time - this.ends[before] <= slack) return before;
    return next < this.starts.length && this.starts[next] - time <= slack ? next : -1;
  }
}

// The lowest index whose value passes a test that all later ones pass too; their number where none does.
function lowest(values, passes) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (passes(values[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

function lanesOf(timeline) {
  return timeline.lanes.map(({ rank, events }) => ({
    rank, tracks: [0, 1].map((track) => new Track(events.filter((event) => event[TRACK] === track))),
  }));
}

function lastEnd(lanes) {
  return greatest(lanes.map((lane) => greatest(lane.tracks.map((track) => track.reach.at(-1) ?? 0))), 1);
}

// What an event is, in lines of text: in the tip, and read aloud.
function eventLines(timeline, lane, event) {
  const kind = timeline.kinds[event[KIND]], name = timeline.names[event[NAME]];
  const where = [
    name === kind ? null : kind, event[MICRO_BATCH] >= 0 ? `micro-batch ${event[MICRO_BATCH]}` : null,
    event[STAGE] >= 0 ? `stage ${event[STAGE]}` : null,
  ].filter(Boolean);
  const rate = event[DURATION] > 0 ? `, ${decimal(event[BYTES] / event[DURATION] * 1e6, "B/s")}` : "";
  return [
    name, `rank ${lane.rank}${where.length ? `: ${where.join(", ")}` : ""}`,
    `${seconds(event[DURATION] / 1e6)}, from ${seconds(event[START] / 1e6)}`,
    ...(event[BYTES] > 0 ? [bytes(event[BYTES]) + rate] : []),
  ];
}
