// One frame of the timeline.

function drawTimeline(view) {
  const ratio = devicePixelRatio || 1;
  const width = view.scroller.clientWidth, { canvas, height } = view;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  const first = Math.max(0, Math.floor(view.scroller.scrollTop / view.style.lane));
  const last = Math.min(view.lanes.length, Math.ceil((view.scroller.scrollTop + height - AXIS) / view.style.lane));
  drawPixels(view, context, ratio, first, last);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.save();
  context.beginPath();
  context.rect(0, AXIS, width, height - AXIS);
  context.clip();
  for (let lane = first; lane < last; lane++) drawWords(view, context, lane);
  if (view.current) drawCurrent(view, context);
  context.restore();
  drawAxis(view, context, width, height);
  if (view.band) drawBand(view, context, height);
  view.range.textContent = `${seconds(view.from / 1e6)} to ${seconds(view.to / 1e6)} of ${seconds(view.whole / 1e6)}`;
}

function drawPixels(view, context, ratio, first, last) {
  const across = Math.max(1, Math.round(view.width * ratio)), down = Math.max(1, Math.round((view.height - AXIS) * ratio));
  if (view.image?.width !== across || view.image?.height !== down) {
    view.image = new ImageData(across, down);
    view.buffer = new Uint32Array(view.image.data.buffer);
    view.row = new Uint32Array(across);
  }
  view.buffer.fill(EMPTY);
  const scale = view.scale * ratio;
  for (let lane = first; lane < last; lane++) {
    let top = view.topOf(lane) - AXIS + 1;
    view.lanes[lane].tracks.forEach((track, number) => {
      const from = Math.max(0, Math.round(top * ratio)), to = Math.min(down, Math.round((top + view.style.heights[number]) * ratio));
      top += view.style.heights[number] + 1;
      if (!track.events.length || to <= from) return;
      view.painter.paint(track, view.from, scale, view.row);
      for (let line = from; line < to; line++) view.buffer.set(view.row, line * across);
    });
  }
  context.putImageData(view.image, Math.round(GUTTER * ratio), Math.round(AXIS * ratio));
}

function drawWords(view, context, lane) {
  const [ink, , line] = view.ink;
  const top = view.topOf(lane);
  context.fillStyle = line;
  context.fillRect(0, Math.round(top + view.style.lane) - 2, view.scroller.clientWidth, 1);
  context.fillStyle = ink;
  context.textAlign = "right";
  context.fillText(`rank ${view.lanes[lane].rank}`, GUTTER - 8, top + view.style.lane / 2 - 1);
  if (!view.style.font) return;
  context.textAlign = "center";
  const track = view.lanes[lane].tracks[0];
  for (let index = track.firstAfter(view.from); index < track.starts.length && track.starts[index] < view.to; index++) {
    const left = Math.max(GUTTER, view.xOf(track.starts[index])), right = Math.min(view.scroller.clientWidth, view.xOf(track.ends[index]));
    if (right - left < 14) continue;
    const event = track.events[index], kind = view.timeline.kinds[event[KIND]];
    const number = event[MICRO_BATCH] >= 0 ? String(event[MICRO_BATCH]) : "";
    const word = [`${view.timeline.names[event[NAME]]} ${number}`, `${kind} ${number}`, number].find((one) => context.measureText(one).width < right - left - 6);
    if (!word) continue;
    context.fillStyle = view.colours[event[KIND]].ink;
    context.fillText(word.trim(), (left + right) / 2, top + 1 + view.style.heights[0] / 2);
  }
}

function drawCurrent(view, context) {
  const event = view.eventOf(view.current), [first, second] = view.style.heights;
  const left = view.xOf(event[START]), right = view.xOf(event[START] + event[DURATION]);
  const top = view.topOf(view.current.lane) + 1 + (view.current.track ? first + 1 : 0);
  const from = Math.max(GUTTER, left) - 1, to = Math.max(from + 3, Math.min(view.scroller.clientWidth, right) + 1);
  if (right < view.from && left > view.to) return;
  context.lineWidth = 2;
  context.strokeStyle = view.ink[0];
  context.strokeRect(from, top - 1, to - from, (view.current.track ? second : first) + 2);
}

function drawAxis(view, context, width, height) {
  const [, soft, line] = view.ink;
  const { found, step } = ticks(view.from, view.to, view.width / 90);
  // As many digits as tell two neighbours apart, in a unit that suits the end.
  const [size, unit] = view.to >= 1e6 ? [1e6, "s"] : view.to >= 1e3 ? [1e3, "ms"] : [1, "\u00b5s"];
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  context.textAlign = "center";
  for (const tick of found) {
    const x = Math.round(view.xOf(tick)) + 0.5;
    context.fillStyle = line;
    context.globalCompositeOperation = "destination-over"; // behind the events
    context.fillRect(x, AXIS - 4, 1, height);
    context.globalCompositeOperation = "source-over";
    context.fillStyle = soft;
    if (x < width - 22) context.fillText(`${(tick / size).toFixed(Math.min(9, digits))} ${unit}`, Math.max(x, GUTTER + 14), AXIS / 2 - 1);
  }
  context.fillStyle = line;
  context.fillRect(0, AXIS - 1, width, 1);
}

function drawBand(view, context, height) {
  const [left, right] = [...view.band].sort((a, b) => a - b);
  context.fillStyle = view.ink[3];
  context.globalAlpha = 0.2;
  context.fillRect(left, AXIS, right - left, height);
  context.globalAlpha = 1;
}
