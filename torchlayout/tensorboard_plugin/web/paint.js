// Draws lanes into pixels. 256,000 events are more than a canvas takes as rectangles in a frame, so each row is made as
// one line of pixels, in each of them the kind that takes most of it, and copied to the height of the row.

const EMPTY = 0;
const SEPARATED = 5; // pixels from which an event is wide enough to give one up, so that its neighbour can be told apart

class RowPainter {
  constructor(palette) {
    this.palette = palette; // colour of each kind, as ImageData holds it
    this.cover = new Float64Array(palette.length);
  }

  // The part of a track from a time on, at so many pixels a microsecond.
  paint(track, from, scale, pixels) {
    pixels.fill(EMPTY);
    const { starts, ends, kinds } = track;
    const width = pixels.length;
    this.pixels = pixels;
    this.column = -1;
    for (let index = track.firstAfter(from); index < starts.length; index++) {
      const left = (starts[index] - from) * scale, right = (ends[index] - from) * scale;
      if (left >= width) break;
      if (right > 0) this.event(kinds[index], Math.max(0, left), Math.min(width, right), right - left >= SEPARATED && left >= 0);
    }
    this.flush();
  }

  event(kind, left, right, separated) {
    const first = Math.floor(left), last = Math.floor(right);
    if (first === last) this.add(first, kind, Math.max(right - left, 1e-6));
    else {
      if (!separated) this.add(first, kind, first + 1 - left);
      this.flush();
      this.pixels.fill(this.palette[kind], first + 1, last);
      if (right > last && !separated) this.add(last, kind, right - last);
    }
  }

  add(column, kind, part) {
    if (column !== this.column) this.flush();
    this.column = column;
    this.cover[kind] += part;
  }

  flush() {
    if (this.column < 0) return;
    let most = 0;
    for (let kind = 1; kind < this.cover.length; kind++) if (this.cover[kind] > this.cover[most]) most = kind;
    if (this.column < this.pixels.length) this.pixels[this.column] = this.palette[most];
    this.cover.fill(0);
    this.column = -1;
  }
}

// A CSS colour as ImageData holds it on the little-endian machines that browsers run on.
function packed(colour) {
  const [red, green, blue] = colour.match(/[\d.]+/g).map(Number);
  return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
}

// The colour that each kind has in legends, and whether words on it are dark.
function kindColours(root, kinds) {
  return kinds.map((kind) => {
    const sample = swatch(kind.replace(/[^a-z]/g, ""));
    root.append(sample);
    const colour = getComputedStyle(sample).backgroundColor;
    sample.remove();
    const [red, green, blue] = colour.match(/[\d.]+/g).map(Number);
    return { colour, pixel: packed(colour), ink: 0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#14171c" : "#ffffff" };
  });
}

// Steps of 1, 2 or 5 that leave room for their numbers.
function ticks(from, to, most) {
  const raw = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) found.push(tick);
  return { found, step };
}
