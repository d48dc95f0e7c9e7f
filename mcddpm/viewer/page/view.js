// The page: what is looked at, how, and what lies under the cursor.

import { KINDS, Layer, TITLES, colourBar, fetched, list, picture, query, short } from './draw.js';
import { Jobs } from './jobs.js';

const at = (id) => document.getElementById(id);
const KEPT = 300; // layers in memory: some 200 kB each
const PAUSE = 50; // ms on a slice before its neighbours and its quality are asked for: who scrolls past waits for neither

const state = {
  name: '', info: null, slice: 0, sample: 0, layers: ['mean', 'std'], mode: 'single', mix: 0.5, tool: 'window',
  windows: {}, zoom: 1, center: [0.5, 0.5], box: null, cursor: null, playing: false, shown: [], under: {},
};
const layers = new Map();

// --- what is fetched -----------------------------------------------------------------------------------------------

function layer(name, slice = state.slice, sample = state.sample) {
  const numbered = name === 'sample' || name === 'kspace';
  const key = query({ name: state.name, layer: name, slice, sample: numbered ? sample : 0 });
  if (!layers.has(key)) {
    const coming = fetched(`/api/layer?${key}`).then(async (answer) => new Layer(name, await answer.arrayBuffer(), answer.headers));
    coming.catch(() => layers.delete(key));
    layers.set(key, coming);
    while (layers.size > KEPT) layers.delete(layers.keys().next().value);
  }
  return layers.get(key);
}

async function open(name) {
  state.info = await (await fetched(`/api/result?${query({ name })}`)).json();
  Object.assign(state, { name, slice: Math.floor(state.info.slices / 2), sample: 0, box: null, cursor: null, zoom: 1, center: [0.5, 0.5] });
  stopFilm();
  forgetBox();
  list(at('cursor'), [['move over the image', '']]);
  state.layers = state.layers.map((one, k) => (state.info.layers.includes(one) ? one : state.info.layers[k] ?? 'mean'));
  for (const id of ['layer-a', 'layer-b']) {
    at(id).replaceChildren(...state.info.layers.map((one) => new Option(TITLES[one] ?? one, one)));
  }
  at('slice').max = state.info.slices - 1;
  at('sample').max = Math.max(state.info.samples - 1, 0);
  Object.assign(at('result'), { value: name, title: name });
  autoWindow();
  provenance();
  await show();
}

function autoWindow() {
  const { image, std } = state.info.tops;
  state.windows = { image: [0, image], std: [0, std], mask: [0, 1] };
}

async function sliceWindow(share = 1) {
  for (const one of await Promise.all(state.layers.map((name) => layer(name)))) {
    const from = one.kind === 'kspace' ? one.low : Math.min(one.low, 0);
    state.windows[one.kind] = [from, from + (one.high - from) * share];
  }
  draw();
}

function windowOf(one) {
  state.windows[one.kind] ??= [one.kind === 'kspace' ? one.high - 4 : one.low, one.high];
  return state.windows[one.kind];
}

// Fetch what the slice needs, then draw it; a newer wish overtakes an older one.
let wish = 0;
async function show() {
  const mine = ++wish;
  controls();
  try {
    const found = await Promise.all(state.layers.map((name) => layer(name)));
    if (mine !== wish) return;
    state.shown = found;
    draw();
    document.body.dataset.shown = JSON.stringify([state.name, state.slice, state.layers, state.sample]);
    const under = ['mean', 'std', 'lower', 'upper'].filter((name) => state.info.layers.includes(name));
    const values = await Promise.all(under.map((name) => layer(name)));
    if (mine !== wish) return;
    state.under = Object.fromEntries(under.map((name, k) => [name, values[k]]));
    cursor();
    await new Promise((next) => setTimeout(next, PAUSE));
    if (mine !== wish) return;
    ahead();
    await numbers();
  } catch (error) { tell(error.message); }
}

function ahead() {
  for (const slice of [state.slice + 1, state.slice - 1]) {
    if (slice >= 0 && slice < state.info.slices) for (const name of state.layers) layer(name, slice);
  }
}

let counted = '';
async function numbers() {
  const key = query({ name: state.name, slice: state.slice });
  if (key === counted) return;
  counted = key;
  const found = await (await fetched(`/api/numbers?${key}`)).json();
  if (key !== counted) return;
  const names = {
    acceleration: 'acceleration', psnr_mean: 'PSNR of the mean (slice)', ssim_mean: 'SSIM', nmse_mean: 'NMSE',
    psnr_zero_filled: 'PSNR, zero-filled', self_check_p: 'self-check, p', max: 'maximum',
  };
  list(at('numbers'), Object.entries(names).filter(([key]) => key in found).map(([key, text]) => [text, short(found[key])]));
  if (state.box) await boxNumbers();
}

function checked({ p, flagged, slices }) {
  const unusual = slices.filter((one) => one.flagged ?? one.p <= 0.05).map((one) => one.slice);
  const found = p === null ? 'not checked' : `p = ${short(p)}${flagged ? ': not understood' : ''}`;
  return unusual.length ? `${found}; unusual slices: ${unusual.join(', ')}` : found;
}

function provenance() {
  const { provenance: p, samples, slices, height, width } = state.info;
  const told = [['size', `${slices} × ${height} × ${width}`], ['samples', samples]];
  if (p.task?.mask) told.push(['mask', `${p.task.mask.replaceAll('_', ' ')}, ${p.task.acceleration}×`]);
  if (p.task) told.push(['sampler', `${p.task.sampler}, ${p.task.steps} steps`], ['seed', p.task.seed]);
  if (p.model) told.push(['model', `${p.model.name} ${String(p.model.sha256).slice(0, 8)}`]);
  if (p.input) told.push(['input', p.input.file]);
  if (p.simulated_phase) told.push(['phase', 'simulated']);
  if (p.self_check) told.push(['self-check', checked(p.self_check)]);
  if (p.calibration) told.push(['intervals', `fitted on ${p.calibration.data}, ${p.calibration.date}`]);
  if (p.made_by) told.push(['made by', p.made_by]);
  for (const text of p.warnings ?? []) told.push(['warning', text]);
  list(at('provenance'), told);
  at('downloads').replaceChildren(...['h5', 'nifti', 'dicom'].map((format) => Object.assign(document.createElement('a'), {
    href: `/api/download?${query({ name: state.name, format })}`, textContent: format, download: '',
  })));
}

// --- what is drawn -------------------------------------------------------------------------------------------------

function fit(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  return ratio;
}

// Where the image lies in a canvas, in CSS pixels.
function frame(canvas) {
  const { height, width } = state.info;
  const scale = Math.min(canvas.clientWidth / width, canvas.clientHeight / height) * state.zoom;
  return {
    scale,
    x: canvas.clientWidth / 2 - state.center[0] * width * scale,
    y: canvas.clientHeight / 2 - state.center[1] * height * scale,
  };
}

function draw() {
  if (!state.shown.length) return;
  const [a, b] = state.shown;
  if (state.mode === 'side') { paint(at('pane-a'), a); paint(at('pane-b'), b); } else if (state.mode === 'single') paint(at('pane-a'), a);
  else paint(at('pane-a'), a, b);
}

function paint(canvas, first, second = null) {
  const ratio = fit(canvas), context = canvas.getContext('2d'), { scale, x, y } = frame(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = '#000';
  context.fillRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  context.imageSmoothingEnabled = scale < 1;
  const place = [x, y, first.width * scale, first.height * scale];
  context.drawImage(picture(first.pixels(...windowOf(first))), ...place);
  if (second) {
    context.save();
    if (state.mode === 'blend') context.globalAlpha = state.mix;
    else {
      context.beginPath();
      context.rect(x + place[2] * state.mix, y, place[2], place[3]);
      context.clip();
    }
    context.drawImage(picture(second.pixels(...windowOf(second))), ...place);
    context.restore();
    if (state.mode === 'swipe') line(context, x + place[2] * state.mix, y, place[3]);
  }
  if (state.box) {
    context.strokeStyle = '#ff5c5c';
    context.lineWidth = 1.5;
    const { top, left, height, width } = state.box;
    context.strokeRect(x + left * scale, y + top * scale, width * scale, height * scale);
  }
  const bar = Math.min(160, canvas.clientHeight / 3);
  colourBar(context, first, ...windowOf(first), canvas.clientWidth - 20, 14, bar);
  if (second && second.kind !== first.kind) colourBar(context, second, ...windowOf(second), canvas.clientWidth - 20, bar + 40, bar);
  context.fillStyle = '#e8eaed';
  context.font = '13px system-ui, sans-serif';
  context.textAlign = 'left';
  const title = (one) => (TITLES[one.name] ?? one.name) + (one.name === 'sample' || one.name === 'kspace' ? ` ${state.sample + 1}` : '');
  context.fillText(second ? `${title(first)}  |  ${title(second)}` : title(first), 10, 20);
}

function line(context, x, y, height) {
  context.strokeStyle = '#8ab8ff';
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x, y + height);
  context.stroke();
}

function controls() {
  at('slice').value = state.slice;
  at('slice-number').textContent = `${state.slice + 1} of ${state.info.slices}`;
  at('sample').value = state.sample;
  at('sample-number').textContent = state.info.samples ? `${state.sample + 1} of ${state.info.samples}` : '–';
  at('sample').disabled = at('play').disabled = state.info.samples < 2;
  at('layer-a').value = state.layers[0];
  at('layer-b').value = state.layers[1];
  at('second').hidden = state.mode === 'single';
  at('mix-label').hidden = !['blend', 'swipe'].includes(state.mode);
  at('pane-b').hidden = state.mode !== 'side';
  at('play').setAttribute('aria-pressed', state.playing);
  for (const button of document.querySelectorAll('[data-mode]')) button.setAttribute('aria-pressed', button.dataset.mode === state.mode);
  for (const button of document.querySelectorAll('[data-tool]')) button.setAttribute('aria-pressed', button.dataset.tool === state.tool);
}

// --- under the cursor, and in a box --------------------------------------------------------------------------------

function pixel(canvas, event) {
  const { scale, x, y } = frame(canvas), area = canvas.getBoundingClientRect();
  return [Math.floor((event.clientY - area.top - y) / scale), Math.floor((event.clientX - area.left - x) / scale)];
}

function cursor() {
  if (!state.cursor || !state.info) return;
  const [row, column] = state.cursor;
  if (row < 0 || column < 0 || row >= state.info.height || column >= state.info.width) return;
  const told = [['row, column', `${row}, ${column}`]];
  for (const one of state.mode === 'single' ? state.shown.slice(0, 1) : state.shown) {
    if (!(one.name in state.under)) told.push([TITLES[one.name] ?? one.name, short(one.value(row, column))]);
  }
  for (const name of ['mean', 'std']) if (state.under[name]) told.push([name, short(state.under[name].value(row, column))]);
  if (state.under.lower && state.under.upper) {
    told.push(['interval', `${short(state.under.lower.value(row, column))} to ${short(state.under.upper.value(row, column))}`]);
  }
  list(at('cursor'), told);
}

function forgetBox() {
  state.box = null;
  list(at('box'), [['choose Box and drag', '']]);
  at('histogram').hidden = true;
}

async function boxNumbers() {
  const found = await (await fetched(`/api/box?${query({ name: state.name, slice: state.slice, ...state.box })}`)).json();
  const told = [['pixels', found.pixels], ['mean', short(found.mean)], ['lowest', short(found.min)], ['highest', short(found.max)]];
  if ('std' in found) told.push(['std of a pixel', short(found.std)], ['std of the average', short(found.std_of_average)]);
  list(at('box'), told);
  const canvas = at('histogram'), context = canvas.getContext('2d'), most = Math.max(...found.histogram, 1);
  canvas.hidden = false;
  context.clearRect(0, 0, canvas.width, canvas.height);
  const width = canvas.width / found.histogram.length;
  context.fillStyle = '#8ab8ff';
  found.histogram.forEach((count, k) => {
    const height = count / most * (canvas.height - 14);
    context.fillRect(k * width, canvas.height - 14 - height, width - 1, height);
  });
  context.fillStyle = '#a8b0bb';
  context.font = '10px system-ui, sans-serif';
  context.fillText(short(found.edges[0]), 0, canvas.height - 2);
  context.textAlign = 'right';
  context.fillText(short(found.edges.at(-1)), canvas.width, canvas.height - 2);
  context.textAlign = 'left';
}

// --- mouse and keys ------------------------------------------------------------------------------------------------

function clamp(value, low, high) { return Math.max(low, Math.min(high, value)); }

function go(slice) {
  const next = clamp(slice, 0, state.info.slices - 1);
  if (next !== state.slice) { state.slice = next; show(); }
}

// Zoom about a point of the image, which stays where it is; the middle unless told.
function zoomBy(factor, point = null) {
  const before = state.zoom;
  state.zoom = clamp(before * factor, 0.5, 40);
  if (point) {
    const share = 1 - before / state.zoom, place = [point[1] / state.info.width, point[0] / state.info.height];
    state.center = state.center.map((c, k) => c + (place[k] - c) * share);
  }
  draw();
}

function rewindow(width, level) {
  for (const one of state.mode === 'single' ? state.shown.slice(0, 1) : state.shown) {
    const [from, to] = windowOf(one), middle = (from + to) / 2 + (to - from) * level, half = (to - from) / 2 * width;
    state.windows[one.kind] = [middle - half, middle + half];
  }
  draw();
}

function moveCursor(rows, columns) {
  const { height, width } = state.info, [row, column] = state.cursor ?? [Math.floor(height / 2), Math.floor(width / 2)];
  state.cursor = [clamp(row + rows, 0, height - 1), clamp(column + columns, 0, width - 1)];
  cursor();
  if (state.corner) boxTo(state.corner, state.cursor);
  draw();
}

function boxTo(first, last) {
  const { height, width } = state.info;
  const rows = [first[0], last[0]].map((v) => clamp(v, 0, height - 1)).sort((p, q) => p - q);
  const columns = [first[1], last[1]].map((v) => clamp(v, 0, width - 1)).sort((p, q) => p - q);
  state.box = { top: rows[0], left: columns[0], height: rows[1] - rows[0] + 1, width: columns[1] - columns[0] + 1 };
}

// By keyboard: B, Shift and arrows, B again. With the mouse, B chooses the tool.
function boxKey() {
  if (state.corner) {
    state.corner = null;
    boxNumbers().catch((error) => tell(error.message));
  } else {
    state.corner = state.cursor;
    if (state.corner) boxTo(state.corner, state.corner);
  }
  state.tool = 'box';
  controls();
  draw();
}

function drag(canvas, event) {
  const start = [event.clientX, event.clientY], first = pixel(canvas, event);
  const across = first[1] / state.info.width, swiping = state.mode === 'swipe' && Math.abs(across - state.mix) < 0.03;
  const tool = event.shiftKey || event.button === 1 ? 'pan' : swiping ? 'swipe' : state.tool;
  const overSecond = canvas.id === 'pane-b' || (state.mode === 'swipe' && across > state.mix);
  const center = [...state.center], shown = state.shown[overSecond ? 1 : 0];
  state.corner = null;
  const [from, to] = windowOf(shown);
  canvas.setPointerCapture(event.pointerId);
  const move = (now) => {
    const [dx, dy] = [now.clientX - start[0], now.clientY - start[1]];
    if (tool === 'pan') {
      const { scale } = frame(canvas);
      state.center = [center[0] - dx / scale / state.info.width, center[1] - dy / scale / state.info.height];
    } else if (tool === 'window') {
      const width = (to - from) * 2 ** (dx / 150), level = (from + to) / 2 + (to - from) * dy / 300;
      state.windows[shown.kind] = [level - width / 2, level + width / 2];
    } else if (tool === 'swipe') {
      state.mix = clamp((pixel(canvas, now)[1] + 0.5) / state.info.width, 0, 1);
      at('mix').value = state.mix;
    } else boxTo(first, pixel(canvas, now));
    draw();
  };
  const end = () => {
    canvas.removeEventListener('pointermove', move);
    canvas.removeEventListener('pointerup', end);
    canvas.removeEventListener('pointercancel', end);
    if (tool === 'box' && state.box) boxNumbers().catch((error) => tell(error.message));
  };
  canvas.addEventListener('pointermove', move);
  canvas.addEventListener('pointerup', end);
  canvas.addEventListener('pointercancel', end);
}

function setMode(mode) {
  state.mode = mode;
  controls();
  show();
}

function nextLayer() {
  const names = state.info.layers;
  state.layers[0] = names[(names.indexOf(state.layers[0]) + 1) % names.length];
  show();
}

let film = 0;
function stopFilm() {
  clearInterval(film);
  state.playing = false;
}

function play() {
  const begin = !state.playing && state.info.samples > 1;
  stopFilm();
  state.playing = begin;
  if (begin) {
    if (!state.layers.includes('sample')) state.layers[0] = 'sample';
    film = setInterval(() => { state.sample = (state.sample + 1) % state.info.samples; show(); }, 160);
  }
  controls();
}

function fitImage() {
  Object.assign(state, { zoom: 1, center: [0.5, 0.5] });
  draw();
}

function exportImage() {
  const panes = state.mode === 'side' ? [at('pane-a'), at('pane-b')] : [at('pane-a')];
  const whole = document.createElement('canvas');
  whole.width = panes.reduce((sum, pane) => sum + pane.width, 0);
  whole.height = panes[0].height;
  let x = 0;
  for (const pane of panes) { whole.getContext('2d').drawImage(pane, x, 0); x += pane.width; }
  whole.toBlob((blob) => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(blob);
    link.download = `${state.name.replace(/[^A-Za-z0-9]+/g, '-')}-${state.slice + 1}-${state.layers[0]}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}

const KEYS = {
  ArrowUp: () => go(state.slice + 1), ArrowRight: () => go(state.slice + 1), PageUp: () => go(state.slice + 10),
  ArrowDown: () => go(state.slice - 1), ArrowLeft: () => go(state.slice - 1), PageDown: () => go(state.slice - 10),
  Home: () => go(0), End: () => go(state.info.slices - 1),
  1: () => setMode('single'), 2: () => setMode('side'), 3: () => setMode('blend'), 4: () => setMode('swipe'),
  l: nextLayer, ' ': play, w: () => { autoWindow(); draw(); }, r: fitImage, e: exportImage,
  b: boxKey, Escape: () => { state.corner = null; forgetBox(); draw(); },
  '[': () => rewindow(0.9, 0), ']': () => rewindow(1 / 0.9, 0), ',': () => rewindow(1, 0.05), '.': () => rewindow(1, -0.05),
  '+': () => zoomBy(1.25), '=': () => zoomBy(1.25), '-': () => zoomBy(0.8),
};
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function connect() {
  at('result').addEventListener('change', () => open(at('result').value).catch((error) => tell(error.message)));
  for (const [k, id] of ['layer-a', 'layer-b'].entries()) {
    at(id).addEventListener('change', () => { state.layers[k] = at(id).value; at(id).blur(); show(); });
  }
  at('slice').addEventListener('input', () => go(Number(at('slice').value)));
  at('sample').addEventListener('input', () => {
    state.sample = Number(at('sample').value);
    if (!state.layers.some((name) => name === 'sample' || name === 'kspace')) state.layers[0] = 'sample';
    show();
  });
  at('mix').addEventListener('input', () => { state.mix = Number(at('mix').value); draw(); });
  at('play').addEventListener('click', play);
  at('reset').addEventListener('click', fitImage);
  at('export').addEventListener('click', exportImage);
  for (const button of document.querySelectorAll('[data-mode]')) button.addEventListener('click', () => setMode(button.dataset.mode));
  for (const button of document.querySelectorAll('[data-tool]')) {
    button.addEventListener('click', () => { state.tool = button.dataset.tool; controls(); });
  }
  for (const button of document.querySelectorAll('[data-window]')) {
    button.addEventListener('click', () => {
      if (button.dataset.window === 'auto') { autoWindow(); draw(); return; }
      sliceWindow(button.dataset.window === 'soft' ? 0.5 : 1).catch((error) => tell(error.message));
    });
  }
  let turned = 0;
  for (const canvas of [at('pane-a'), at('pane-b')]) {
    canvas.addEventListener('pointerdown', (event) => { if (state.shown.length) drag(canvas, event); });
    canvas.addEventListener('pointermove', (event) => {
      if (!state.info) return;
      state.cursor = pixel(canvas, event);
      cursor();
    });
    canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      if (!state.info) return;
      if (event.ctrlKey) return zoomBy(event.deltaY < 0 ? 1.15 : 1 / 1.15, pixel(canvas, event));
      turned += Math.abs(event.deltaY) >= 50 ? Math.sign(event.deltaY) * 50 : event.deltaY; // trackpads turn in small steps
      const slices = Math.trunc(turned / 50);
      turned -= slices * 50;
      if (slices) go(state.slice + slices);
    }, { passive: false });
    canvas.addEventListener('pointerleave', () => {
      state.cursor = null;
      list(at('cursor'), [['move over the image', '']]);
    });
  }
  document.addEventListener('keydown', (event) => {
    const slider = event.target.closest('input[type=range]');
    const inForm = event.target.closest('input, select, textarea') && !(slider && !event.key.startsWith('Arrow'));
    const pressing = event.key === ' ' && event.target.closest('button, a');
    if (inForm || pressing || event.ctrlKey || event.metaKey || event.altKey || !state.info) return;
    if (event.shiftKey && event.key in MOVES) {
      event.preventDefault();
      return moveCursor(...MOVES[event.key].map((v) => v * (event.repeat ? 4 : 1)));
    }
    const act = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
    if (act) { event.preventDefault(); act(); }
  });
  new ResizeObserver(draw).observe(at('panes'));
}

function tell(text) { at('status').textContent = text; }

// The names of all results; opens the one that is wanted, or the first if none is open.
async function refresh(wanted = '') {
  if (wanted) await open(wanted);
  const names = await (await fetched('/api/results')).json();
  at('result').replaceChildren(...names.map((name) => new Option(name, name)));
  if (!state.name && names.length) await open(names[0]);
  at('result').value = state.name;
  tell(state.name ? '' : 'No results in this folder yet: start a reconstruction on the left.');
}

connect();
const address = new URL(window.location.href), failed = (error) => tell(error.message);
const jobs = new Jobs((name, mine) => { refresh(mine || !state.name ? name : '').catch(failed); });
jobs.open().catch(failed);
refresh(address.searchParams.get('result') ?? '').catch((error) => refresh().then(() => failed(error), failed));
if (address.searchParams.has('token')) { // it is in a cookie by now, and should not stay in the history
  address.searchParams.delete('token');
  window.history.replaceState(null, '', address);
}
window.view = { state, KINDS }; // for tests and the curious
