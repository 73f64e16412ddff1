// The picture of the timeline viewer: what stands where, what is drawn, what is under the pointer, in words.
// It knows a canvas and nothing of the page. Python joins this file and timeline_explorer.js into one module.

const LEFT = 92, RIGHT = 20, HEAD = 30, GAP = 10, AXIS = 30; // pixels, as in helpers/draw/timelines.py
const TALLEST = 620; // pixels of canvas; more ranks scroll
const SHORTEST = 1; // pixels; what is shorter is drawn together with its neighbours
const FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif";
const sum = (values) => values.reduce((total, value) => total + value, 0);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// ---- words with braces to fill, as in helpers/learner/words/__init__.py: {name}, and {names:* and } for a list

const fill = (text, values) => text.replace(/\{(\w+)(?::\*([^}]*))?\}/g, (_, name, between) =>
  between === undefined ? values[name] : values[name].join(between));

// ---- numbers as text, by the rules of helpers/quantities/units.py and with its units

const DIGITS = [0, 1, 2].map((digits) =>
  new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

function scaled(value, units, smallest) {
  for (const [size, unit] of units) {
    if (Math.abs(value) < size * 0.99995) continue;
    const number = value / size, size3 = Math.abs(number);
    return `${DIGITS[size3 < 9.995 ? 2 : size3 < 99.95 ? 1 : 0].format(number)} ${unit}`;
  }
  return `${DIGITS[0].format(value)} ${smallest}`;
}

// ---- arrays

function typed(Kind, view) {
  return new Kind(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/** The first index in [low, high) whose value is above `limit`; the values ascend. */
function firstAbove(values, limit, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

function decoded(panel, numKinds) {
  const held = panel.held.map((each) => heldBy(each, numKinds));
  return {
    ...panel,
    start: typed(Float64Array, panel.start),
    end: typed(Float64Array, panel.end),
    numBytes: typed(Float64Array, panel.num_bytes),
    name: typed(Uint32Array, panel.name),
    kind: typed(Uint8Array, panel.kind),
    idle: new Map(panel.idle.map(({ rank, start, end }) => [rank, idleBy(start, end)])),
    held: new Map(held.map((each) => [each.rank, each])),
  };
}

function idleBy(start, end) { return [typed(Float64Array, start), typed(Float64Array, end)]; }

/** times and sums as in timeline_arrays.py; peak: the most bytes that the rank ever holds. */
function heldBy({ rank, times, sums }, numKinds) {
  const held = { rank, times: typed(Float64Array, times), sums: typed(Float64Array, sums), peak: 0 };
  for (let at = 0; at < held.sums.length; at += numKinds) {
    held.peak = Math.max(held.peak, sum(held.sums.subarray(at, at + numKinds)));
  }
  return held;
}

/** The span of this track that runs at an instant, or -1; at the timeline's end, the one that ends there. */
function running(panel, track, instant) {
  const i = firstAbove(panel.end, instant, track.first, track.last);
  if (i < track.last && panel.start[i] <= instant) return i;
  const last = track.last - 1;
  return instant === panel.duration && panel.end[last] === instant ? last : -1;
}

// ---- colours and textures; the marks are those of helpers/draw/svg.py

const MARKS = {
  dots: (tile) => { tile.globalAlpha = 0.6; tile.beginPath(); tile.arc(3, 3, 1.1, 0, 7); tile.fill(); },
  lines: (tile) => { tile.globalAlpha = 0.45; tile.fillRect(0, 0, 5, 1); },
  stripes: (tile) => { tile.globalAlpha = 0.32; tile.fillRect(0, 0, 1.6, 6); },
  hatch: (tile) => { tile.globalAlpha = 0.55; tile.fillRect(0, 0, 1, 6); },
};
const TURNS = { stripes: 45, hatch: -45 };
const SHARP = 4; // canvas pixels of a tile for one pixel on the screen

function pattern(context, texture, ground, overlay) {
  const size = texture === "lines" ? 5 : 6;
  const canvas = Object.assign(document.createElement("canvas"), { width: size * SHARP, height: size * SHARP });
  const tile = canvas.getContext("2d");
  tile.scale(SHARP, SHARP);
  if (ground) { tile.fillStyle = ground; tile.fillRect(0, 0, size, size); }
  tile.fillStyle = overlay;
  MARKS[texture](tile);
  const made = context.createPattern(canvas, "repeat");
  made.setTransform(new DOMMatrix().rotate(TURNS[texture] ?? 0).scale(1 / SHARP));
  return made;
}

/** What to fill a kind with: `plain` where it is narrow, `wide` with its texture where there is room. */
function ink(context, { fill, text, texture, overlay, edge }) {
  const wide = texture ? pattern(context, texture, fill, overlay) : fill;
  return { plain: edge, wide, text, edge: edge === fill ? "" : edge };
}

// ---- the picture

/** from, to: the seconds that are visible. head: the play head, seconds. rank: the selected one. */
class Picture {
  constructor(data, canvas) {
    Object.assign(this, {
      names: data.names, kinds: data.kinds, lanes: data.lanes, memoryKinds: data.memory_kinds, paints: data.paints, units: data.units,
      words: data.words, theme: data.theme, length: data.end,
    });
    this.panels = data.panels.map((panel) => decoded(panel, this.memoryKinds.length));
    this.ranks = [...new Set(this.panels.flatMap((panel) => panel.ranks))].sort((a, b) => a - b);
    this.peak = Math.max(0, ...this.panels.flatMap((panel) => [...panel.held.values()].map((held) => held.peak)));
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    const paints = Object.entries(this.paints);
    this.inks = Object.fromEntries(paints.map(([kind, paint]) => [kind, ink(this.context, paint)]));
    this.idle = pattern(this.context, "hatch", "", this.theme.grey);
    this.widths = new Map(); // text -> its width in the bars' font, in parts of the font's size
    this.layOut();
  }

  seconds(value) { return value ? scaled(value, this.units.seconds, "s") : "0 s"; }
  bytes(value) { return scaled(value, this.units.bytes, "B"); }

  // -- what stands where

  layOut() {
    const most = Math.max(...this.panels.map((panel) => panel.ranks.length));
    const compute = most <= 4 ? 26 : most <= 8 ? 18 : 12;
    const memory = most <= 4 ? 22 : most <= 8 ? 14 : 10;
    this.rows = [];
    let y = 0;
    for (const panel of this.panels) {
      panel.top = y;
      y += HEAD;
      for (const rank of panel.ranks) {
        const row = this.placeRank(panel, rank, y, compute, panel.held.size ? memory : 0);
        this.rows.push(row);
        y = row.bottom + 8;
      }
      panel.bottom = y - 8;
      y += GAP;
    }
    this.total = y - GAP; // pixels of all rows
    this.height = Math.min(this.total, TALLEST); // pixels of those in view
  }

  placeRank(panel, rank, top, compute, memory) {
    const tracks = panel.tracks.filter((track) => track.rank === rank);
    const row = { panel, rank, top, tracks, idle: panel.idle.get(rank), held: panel.held.get(rank) };
    const first = { y: top, height: Math.max(compute, 9 * this.rowsOf(tracks, 0)) };
    const needed = Math.min(7 * this.rowsOf(tracks, 1), 70);
    const second = { y: top + first.height + 1, height: Math.max(0.6 * compute, needed) };
    row.lanes = [first, second];
    for (let lane = 2; lane < this.lanes.length; lane++) { // a profile's lanes, where the rank has them
      if (!tracks.some((track) => track.lane === lane)) continue;
      const above = row.lanes.findLast((place) => place);
      const height = Math.max(0.6 * compute, Math.min(7 * this.rowsOf(tracks, lane), 70));
      row.lanes[lane] = { y: above.y + above.height + 1, height };
    }
    const lowest = row.lanes.findLast((place) => place);
    row.memory = { y: lowest.y + lowest.height + 1, height: memory };
    row.bottom = row.memory.y + memory;
    for (const track of tracks) {
      const lane = row.lanes[track.lane];
      track.height = lane.height / track.rows;
      track.y = lane.y + track.row * track.height;
    }
    return row;
  }

  rowsOf(tracks, lane) { return tracks.find((track) => track.lane === lane)?.rows ?? 1; }

  // -- what is drawn

  get scale() { return (this.width - LEFT - RIGHT) / (this.to - this.from); } // pixels a second
  x(instant) { return LEFT + (instant - this.from) * this.scale; }
  instant(x) { return this.from + (x - LEFT) / this.scale; }

  /** Draws what is visible with `top` pixels scrolled away; returns what is under the pointer ({x, y} or null). */
  draw(top, pointer) {
    const { context } = this, ticks = this.ticks();
    this.clear();
    this.drawAxis(ticks);
    context.save();
    context.beginPath();
    context.rect(0, 0, this.width, this.height);
    context.clip();
    context.translate(0, -top);
    for (const panel of this.panels) this.drawPanel(panel, ticks);
    for (const row of this.rows) if (row.bottom > top && row.top < top + this.height) this.drawRow(row);
    const found = pointer && pointer.y < this.height ? this.under(pointer.x, pointer.y + top) : null;
    if (found?.outline) this.outline(found.outline);
    if (this.headIsVisible) for (const panel of this.panels) this.drawHead(panel);
    context.restore();
    if (this.headIsVisible) this.drawHandle();
    return found;
  }

  clear() {
    const { canvas, context, width } = this, height = this.height + AXIS, ratio = devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.textBaseline = "middle";
  }

  label(text, x, y, size, { muted = false, bold = false, align = "left", colour = this.ink } = {}) {
    const { context } = this;
    context.font = `${bold ? "600 " : ""}${size}px ${FONT}`;
    context.textAlign = align;
    context.globalAlpha = muted ? this.theme.muted_opacity : 1;
    context.fillStyle = colour;
    context.fillText(text, x, y);
    context.globalAlpha = 1;
  }

  box(x, y, width, height, opacity) {
    this.context.globalAlpha = opacity;
    this.context.fillStyle = this.theme.grey;
    this.context.fillRect(x, y, width, height);
    this.context.globalAlpha = 1;
  }

  /** Round instants (1, 2 or 5 times a power of ten) some 120 pixels apart, each with its text. */
  ticks() {
    const raw = (this.to - this.from) / Math.max(2, (this.width - LEFT - RIGHT) / 120);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
    const [size, unit] = this.units.seconds.find(([each]) => this.to >= each) ?? this.units.seconds.at(-1);
    const digits = clamp(-Math.floor(Math.log10(step / size) + 1e-9), 0, 12);
    const first = Math.ceil(this.from / step - 1e-9), last = Math.floor(this.to / step + 1e-9);
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, n) => {
      const instant = (first + n) * step, text = (instant / size).toFixed(digits);
      return { x: this.x(instant), text: first + n === last ? `${text} ${unit}` : text };
    });
  }

  drawAxis(ticks) {
    const look = { muted: true, align: "center" };
    for (const { x, text } of ticks) this.label(text, clamp(x, LEFT, this.width - 26), this.height + 17, 11, look);
  }

  drawPanel(panel, ticks) {
    const y = panel.top + HEAD / 2 - 2, top = panel.top + HEAD - 6;
    for (const { x } of ticks) this.box(Math.round(x), top, 1, panel.bottom - top + 2, this.theme.rule_opacity);
    this.label(panel.title, 14, y, 12, { bold: true, muted: true });
    this.label(panel.exposed, this.width - RIGHT, y, 12, { align: "right", muted: true });
  }

  drawRow(row) {
    const { context } = this, [compute, ...lower] = row.lanes;
    const chosen = row.rank === this.rank && this.ranks.length > 1;
    if (chosen) this.box(0, row.top - 3, this.width, row.bottom - row.top + 6, 0.09);
    this.label(`rank ${row.rank}`, 14, compute.y + compute.height / 2, 12, { bold: chosen });
    context.save();
    context.beginPath();
    context.rect(LEFT, row.top, this.width - LEFT - RIGHT, row.bottom - row.top);
    context.clip();
    const [from, until] = [this.x(0), this.x(row.panel.duration)];
    this.box(from, compute.y, until - from, compute.height, this.theme.panel_opacity);
    this.drawIdle(row.idle, compute);
    for (const lane of lower) if (lane) this.box(from, lane.y, until - from, lane.height, this.theme.panel_opacity);
    for (const track of row.tracks) this.drawTrack(row.panel, track);
    if (row.held) this.drawMemory(row);
    context.restore();
    row.lanes.forEach((lane, number) => {
      if (number > 1) this.label(this.lanes[number], LEFT - 6, lane.y + lane.height / 2, 10, { align: "right", muted: true });
    });
    if (row.held && row.memory.height > 12) {
      const peak = fill(this.words.peak, { size: this.bytes(row.held.peak) });
      this.label(peak, 14, row.memory.y + row.memory.height / 2, 11, { muted: true });
    }
  }

  drawIdle([starts, ends], { y, height }) {
    this.context.fillStyle = this.idle;
    for (let i = firstAbove(ends, this.from); i < starts.length && starts[i] < this.to; i++) {
      const x = this.x(starts[i]), width = this.x(ends[i]) - x;
      if (width >= SHORTEST) this.context.fillRect(x, y, width, height);
    }
  }

  /** Bars wide enough to see are drawn one by one; runs of shorter ones as one bar in the colour of most of them. */
  drawTrack(panel, track) {
    const { start, end, kind } = panel, { from, to, scale } = this, shortest = SHORTEST / scale;
    const high = firstAbove(start, to, track.first, track.last);
    let i = firstAbove(end, from, track.first, high), run = null;
    for (; i < high; i++) {
      const long = end[i] - start[i] >= shortest;
      if (run && (long || start[i] - run.end >= shortest || run.end - run.start >= shortest)) {
        this.drawRun(run, track);
        run = null;
      }
      if (long) {
        this.drawBar(panel, track, i);
        continue;
      }
      run ??= { start: start[i], end: end[i], kind: kind[i], longest: 0 };
      run.end = end[i];
      if (end[i] - start[i] > run.longest) [run.kind, run.longest] = [kind[i], end[i] - start[i]];
    }
    if (run) this.drawRun(run, track);
  }

  drawRun(run, track) {
    const x = this.x(run.start);
    this.context.fillStyle = this.inks[this.kinds[run.kind]].plain;
    this.context.fillRect(x, track.y, Math.max(SHORTEST, this.x(run.end) - x), track.height);
  }

  drawBar(panel, track, i) {
    const paint = this.inks[this.kinds[panel.kind[i]]];
    const x = Math.max(this.x(panel.start[i]), -20), right = Math.min(this.x(panel.end[i]), this.width + 20);
    const slit = right - x > 6 ? 1 : right - x > 2 ? 0.5 : 0; // between neighbours
    const width = right - x - slit;
    this.fillBar(paint, x, track.y, width, track.height);
    const [from, to] = [Math.max(x, LEFT), Math.min(right, this.width - RIGHT)];
    if (to - from > 26 && track.height >= 12) this.drawText(panel, track, i, from, to, paint);
  }

  fillBar(paint, x, y, width, height) {
    const { context } = this, isWide = width > 3;
    context.fillStyle = isWide ? paint.wide : paint.plain;
    context.beginPath();
    if (width > 8 && height > 8) context.roundRect(x, y, width, height, 2);
    else context.rect(x, y, width, height);
    context.fill();
    if (!isWide || !paint.edge || height < 3) return;
    context.strokeStyle = paint.edge; // pale fills have an outline, as in helpers/draw/svg.py
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  drawText(panel, track, i, left, right, { text: colour }) {
    const size = Math.min(11, track.height - 3), name = this.names[panel.name[i]];
    const payload = panel.numBytes[i] ? this.bytes(panel.numBytes[i]) : "";
    const texts = payload ? [`${name} · ${payload}`, payload] : [name, name.slice(name.lastIndexOf(".") + 1)];
    const text = texts.find((each) => this.measure(each, size) < right - left - 6);
    if (text) this.label(text, (left + right) / 2, track.y + track.height / 2 + 0.5, size, { align: "center", colour });
  }

  measure(text, size) {
    if (!this.widths.has(text)) {
      this.context.font = `11px ${FONT}`;
      this.widths.set(text, this.context.measureText(text).width / 11);
    }
    return this.widths.get(text) * size;
  }

  /** What the rank holds, stacked by kind; its height is the share of the highest peak of all. */
  drawMemory({ panel, held: { times, sums }, memory }) {
    const count = this.memoryKinds.length, [from, until] = [this.x(0), this.x(panel.duration)];
    this.box(from, memory.y, until - from, memory.height, this.theme.panel_opacity);
    const edge = (instant) => Math.round(clamp(this.x(instant), LEFT - 20, this.width)); // whole pixels: no seams
    for (let step = Math.max(0, firstAbove(times, this.from) - 1); step < times.length && times[step] <= this.to;) {
      let next = step + 1;
      while (next < times.length && (times[next] - times[step]) * this.scale < SHORTEST) next++;
      const x = edge(times[step]), right = edge(times[next] ?? panel.duration);
      this.drawStack(sums.subarray((next - 1) * count, next * count), x, right - x, memory);
      step = next;
    }
  }

  drawStack(sizes, x, width, { y: top, height }) {
    let y = top + height;
    sizes.forEach((size, k) => {
      const part = (size / this.peak) * height;
      y -= part;
      this.context.fillStyle = this.inks[this.memoryKinds[k]].wide;
      if (part) this.context.fillRect(x, y, width, part);
    });
  }

  get headIsVisible() { return this.head >= this.from && this.head <= this.to; }

  drawHead(panel) {
    const { context } = this, x = this.x(this.head), top = panel.top + HEAD - 6, height = panel.bottom - top + 4;
    context.fillStyle = this.surface;
    context.fillRect(x - 2, top, 4, height);
    context.fillStyle = this.ink;
    context.fillRect(x - 1, top, 2, height);
  }

  drawHandle() {
    const { context } = this, x = this.x(this.head);
    context.beginPath();
    context.moveTo(x, this.height - 2);
    context.lineTo(x + 6, this.height + 8);
    context.lineTo(x - 6, this.height + 8);
    context.fill();
  }

  outline({ x, y, width, height }) {
    const { context } = this;
    context.lineWidth = 2;
    context.strokeStyle = this.ink;
    context.strokeRect(x, y, width, height);
  }

  // -- what is under the pointer

  under(x, y) {
    const row = this.rows.find((each) => y >= each.top && y < each.bottom);
    const instant = this.instant(x);
    if (!row || x < LEFT || x > this.width - RIGHT || instant > row.panel.duration) return null;
    if (y >= row.memory.y) return row.held ? { row, instant } : null;
    const track = row.tracks.find((each) => y >= each.y && y < each.y + each.height);
    if (!track) return null;
    const near = 1.5 / this.scale; // a thin span is met within a pixel and a half
    const low = firstAbove(row.panel.end, instant - near, track.first, track.last);
    const high = firstAbove(row.panel.start, instant + near, low, track.last);
    if (high <= low) return null;
    const exact = running(row.panel, track, instant), index = exact < 0 ? low : exact;
    const left = Math.max(this.x(row.panel.start[index]), LEFT);
    const right = Math.min(this.x(row.panel.end[index]), this.width - RIGHT);
    const outline = { x: left, y: track.y, width: Math.max(2, right - left), height: track.height };
    const crowd = right - left < 3 ? high - low : 1;
    return { row, track, index, crowd, outline };
  }

  // -- what is said

  /** The spans that run in this lane of a rank at the play head. */
  current(row, lane) {
    const tracks = row.tracks.filter((track) => track.lane === lane);
    return tracks.map((track) => running(row.panel, track, this.head)).filter((i) => i >= 0);
  }

  spanText(panel, i) {
    const kind = this.kinds[panel.kind[i]], name = this.names[panel.name[i]], { word } = this.paints[kind];
    const what = kind === "communication" || name === word ? name : `${name} · ${word}`;
    return panel.numBytes[i] ? `${what} · ${this.bytes(panel.numBytes[i])}` : what;
  }

  laneText(row, lane) {
    if (this.head > row.panel.duration) return this.words.over;
    const [first, ...more] = this.current(row, lane);
    if (first === undefined) return lane ? this.words.silent : this.words.idle;
    const text = this.spanText(row.panel, first);
    return more.length ? fill(this.words.more, { first: text, count: more.length }) : text;
  }

  /** Bytes of each of the memory kinds at an instant. */
  heldAt({ times, sums }, instant) {
    const count = this.memoryKinds.length, step = firstAbove(times, instant) - 1;
    return sums.subarray(step * count, (step + 1) * count);
  }

  holdsText(held, instant) {
    const sizes = [...this.heldAt(held, instant)], words = this.memoryKinds.map((kind) => this.paints[kind].word);
    const parts = sizes.flatMap((size, k) => (size ? [`${words[k]} ${this.bytes(size)}`] : []));
    return parts.length > 1 ? `${this.bytes(sum(sizes))} = ${parts.join(" + ")}` : parts[0] ?? "0 B";
  }
}
