// Layers as they come over the wire, and how they become pixels.

const MAGMA = [[0, 0, 4], [28, 16, 68], [79, 18, 123], [129, 37, 129], [181, 54, 122], [229, 80, 100], [251, 135, 97],
  [254, 194, 135], [252, 253, 191]];

export const KINDS = {
  mean: 'image', zero_filled: 'image', truth: 'image', lower: 'image', upper: 'image', sample: 'image',
  std: 'std', error: 'std', width: 'std', surprise: 'surprise', kspace: 'kspace', mask: 'mask',
};
export const TITLES = {
  mean: 'mean', zero_filled: 'zero-filled', truth: 'truth', lower: 'interval, lower end', upper: 'interval, upper end',
  sample: 'sample', std: 'std', error: '|error| of the mean', width: 'width of the interval', surprise: 'self-check: surprise',
  kspace: 'k-space (log10)', mask: 'mask',
};

function table(kind) {
  const colours = new Uint8ClampedArray(256 * 3);
  const magma = kind === 'std' || kind === 'surprise';
  for (let v = 0; v < 256; v++) {
    const place = v / 255 * (MAGMA.length - 1), k = Math.min(Math.floor(place), MAGMA.length - 2), part = place - k;
    for (let c = 0; c < 3; c++) colours[3 * v + c] = magma ? MAGMA[k][c] * (1 - part) + MAGMA[k + 1][c] * part : v;
  }
  return colours;
}
const TABLES = Object.fromEntries([...new Set(Object.values(KINDS))].map((kind) => [kind, table(kind)]));

export class Layer {
  constructor(name, buffer, headers) {
    this.name = name;
    this.kind = KINDS[name] ?? 'image';
    this.stored = new Uint16Array(buffer);
    this.low = Number(headers.get('X-Low'));
    this.high = Number(headers.get('X-High'));
    const shape = headers.get('X-Shape').split(',').map(Number);
    [this.height, this.width] = shape.slice(-2);
    this.count = shape.length === 3 ? shape[0] : 1;
  }
  value(row, column) {
    return this.low + this.stored[row * this.width + column] * (this.high - this.low) / 65535;
  }
  // RGBA of one image of it, in a window [from, to].
  pixels(from, to, image = 0) {
    const colours = TABLES[this.kind], size = this.height * this.width, out = new ImageData(this.width, this.height);
    const scale = (this.high - this.low) / 65535, span = to - from || 1;
    for (let k = 0; k < size; k++) {
      const value = this.low + this.stored[image * size + k] * scale;
      const v = Math.max(0, Math.min(255, Math.round((value - from) / span * 255)));
      out.data[4 * k] = colours[3 * v];
      out.data[4 * k + 1] = colours[3 * v + 1];
      out.data[4 * k + 2] = colours[3 * v + 2];
      out.data[4 * k + 3] = 255;
    }
    return out;
  }
}

export async function fetched(address, options) {
  const answer = await fetch(address, options);
  if (!answer.ok) {
    let detail = `${answer.status} ${answer.statusText}`;
    try { detail = (await answer.json()).detail ?? detail; } catch { /* not JSON */ }
    throw new Error(typeof detail === 'string' ? detail : detail.map((d) => `${d.loc?.at(-1)}: ${d.msg}`).join('; '));
  }
  return answer;
}

export function query(values) {
  return new URLSearchParams(Object.entries(values)).toString();
}

// A picture of pixels, to be drawn at any size.
export function picture(pixels) {
  const canvas = new OffscreenCanvas(pixels.width, pixels.height);
  canvas.getContext('2d').putImageData(pixels, 0, 0);
  return canvas;
}

export function colourBar(context, layer, from, to, x, y, height) {
  const colours = TABLES[layer.kind];
  context.fillStyle = 'rgba(0, 0, 0, .55)'; // numbers stay readable on a bright image
  context.fillRect(x - 52, y - 6, 68, height + 12);
  for (let k = 0; k < height; k++) {
    const v = Math.round((1 - k / (height - 1)) * 255);
    context.fillStyle = `rgb(${colours[3 * v]}, ${colours[3 * v + 1]}, ${colours[3 * v + 2]})`;
    context.fillRect(x, y + k, 10, 1);
  }
  context.strokeStyle = '#777';
  context.strokeRect(x - .5, y - .5, 11, height + 1);
  context.fillStyle = '#e8eaed';
  context.font = '11px system-ui, sans-serif';
  context.textAlign = 'right';
  context.fillText(short(to), x - 4, y + 9);
  context.fillText(short(from), x - 4, y + height);
}

export function short(value) {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e5 || size < 1e-2) ? value.toExponential(3) : value.toPrecision(4);
}

export function list(element, entries) {
  element.replaceChildren(...entries.flatMap(([name, value]) => {
    const term = document.createElement('dt'), text = document.createElement('dd');
    term.textContent = name;
    text.textContent = value;
    return [term, text];
  }));
}
