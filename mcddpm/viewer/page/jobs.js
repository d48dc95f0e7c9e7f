// New reconstructions: choose or drop a scan, start, watch, cancel.

import { Layer, fetched, picture, query } from './draw.js';

const at = (id) => document.getElementById(id);
const option = (value, text = value) => Object.assign(document.createElement('option'), { value, textContent: text });

function clock(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')} min`;
}

export class Jobs {
  constructor(finished) {
    this.finished = finished; // called with the name of a new result
    this.known = new Map();
    this.items = new Map();
    this.started = new Set();
    at('kind').addEventListener('change', () => this.describe(at('input').value));
    at('input').addEventListener('change', () => this.describe(at('input').value));
    at('file').addEventListener('change', () => this.upload([...at('file').files]));
    at('wish').addEventListener('submit', (event) => { event.preventDefault(); this.start(); });
    const drop = at('drop');
    for (const name of ['dragenter', 'dragover']) {
      document.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add('over'); });
    }
    document.addEventListener('dragleave', (event) => { if (!event.relatedTarget) drop.classList.remove('over'); });
    document.addEventListener('drop', (event) => {
      event.preventDefault();
      drop.classList.remove('over');
      this.upload([...event.dataTransfer.files]);
    });
  }

  async open() {
    this.poll();
    const choices = await (await fetched('/api/choices')).json();
    this.limit = choices.upload_limit;
    at('input').replaceChildren(option('', '–'), ...choices.inputs.map((name) => option(name)));
    at('mask').replaceChildren(option('', 'as it was measured'), ...choices.masks.map((name) => option(name, name.replaceAll('_', ' '))));
    at('sampler').replaceChildren(...choices.samplers.map((name) => option(name, name === 'mean' ? 'mean (one call)' : name)));
    at('sampler').value = 'dpmpp_2m_sde';
    at('interval').disabled = !choices.calibrated;
    at('self-check').disabled = !choices.self_check;
    const without = [choices.calibrated ? '' : 'no intervals', choices.self_check ? '' : 'no self-check'].filter(Boolean);
    const lacks = without.length ? `, not calibrated: ${without.join(', ')}` : '';
    at('model').textContent = `model: ${choices.model}${lacks}`;
  }

  refuse(error) { at('refused').textContent = error ? error.message ?? error : ''; }

  // One file, or the files of one DICOM series.
  async upload(files) {
    this.refuse('');
    if (!files.length) return;
    const size = files.reduce((sum, file) => sum + file.size, 0);
    if (size > this.limit) return this.refuse(`that is more than ${this.limit / 1e6} MB, which is the limit`);
    try {
      let found, batch = '';
      for (const [k, file] of files.entries()) {
        at('described').textContent = `sending ${file.name} (${k + 1} of ${files.length}) …`;
        const asked = query({ name: file.name, kind: at('kind').value, batch, more: k + 1 < files.length });
        found = await (await fetched(`/api/uploads?${asked}`, { method: 'POST', body: file })).json();
        batch = found.input.split(':')[1];
      }
      at('input').append(option(found.input, files.length > 1 ? `${files.length} files` : files[0].name));
      at('input').value = found.input;
      this.show(found);
    } catch (error) {
      at('described').textContent = '';
      this.refuse(error);
    }
    at('file').value = '';
  }

  async describe(name) {
    this.refuse('');
    at('start').disabled = true;
    at('described').textContent = '';
    if (!name) return;
    try {
      this.show(await (await fetched(`/api/input?${query({ name, kind: at('kind').value })}`)).json());
    } catch (error) { this.refuse(error); }
  }

  show(found) {
    const kind = found.kind === 'kspace' ? 'k-space' : 'images';
    const how = found.undersampled ? 'under-sampled' : 'fully sampled: choose a mask';
    at('described').textContent = `${found.slices} slices of ${found.shape.join(' × ')}, ${kind}, ${how}`;
    at('mask').value = found.undersampled ? '' : 'random_columns';
    at('mask').disabled = at('acceleration').disabled = found.undersampled;
    at('start').disabled = false;
  }

  async start() {
    this.refuse('');
    const wish = { input: at('input').value, kind: at('kind').value, mask: at('mask').value, sampler: at('sampler').value };
    for (const name of ['acceleration', 'samples', 'steps', 'seed']) wish[name] = Number(at(name).value);
    if (at('interval').value) wish.interval = Number(at('interval').value) / 100;
    wish.self_check = at('self-check').checked;
    try {
      const asked = { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(wish) };
      this.started.add((await (await fetched('/api/jobs', asked)).json()).id);
      await this.poll(true);
    } catch (error) { this.refuse(error); }
  }

  async poll(once = false) {
    try {
      const jobs = await (await fetched('/api/jobs')).json();
      for (const job of jobs) {
        const before = this.known.get(job.id);
        this.known.set(job.id, job.state);
        if (job.state === 'done' && before !== 'done' && (before || this.started.has(job.id))) {
          this.finished(job.result, this.started.has(job.id));
        }
      }
      this.draw(jobs);
      const running = jobs.find((job) => job.state === 'running');
      at('live').hidden = !running;
      if (running) await this.preview(running);
      this.away = 0;
    } catch {
      this.away = (this.away ?? 0) + 1; // for a moment, or for good: the next round asks again
    }
    document.body.classList.toggle('away', this.away > 3);
    if (!once) setTimeout(() => this.poll(), document.hidden ? 3000 : 400);
  }

  async preview(job) {
    at('live-title').textContent = `${job.name}, slice ${job.done + 1} of ${job.slices}: step ${job.step} of ${job.steps}`;
    let layer;
    try {
      const answer = await fetched(`/api/jobs/${job.id}/preview`);
      if (answer.status === 204) return; // between two slices there is nothing to see
      layer = new Layer('sample', await answer.arrayBuffer(), answer.headers);
    } catch { return; }
    const canvas = at('preview'), gap = 4;
    canvas.width = layer.count * (layer.width + gap) - gap;
    canvas.height = layer.height;
    const context = canvas.getContext('2d');
    for (let k = 0; k < layer.count; k++) {
      context.drawImage(picture(layer.pixels(0, layer.high * 0.9, k)), k * (layer.width + gap), 0);
    }
    canvas.dataset.step = job.step;
  }

  // One entry a job, changed in place: what is redrawn under a finger cannot be pressed.
  draw(jobs) {
    const shown = jobs.slice(0, 30);
    for (const [k, job] of shown.entries()) {
      if (!this.items.has(job.id)) this.items.set(job.id, this.item(job));
      const item = this.items.get(job.id);
      if (at('jobs').children[k] !== item.root) at('jobs').insertBefore(item.root, at('jobs').children[k] ?? null);
      const running = job.state === 'running', waits = running || job.state === 'waiting';
      item.root.className = item.root.dataset.state = job.state;
      item.text.textContent = `${job.name}: ${job.state}`;
      item.bar.hidden = item.left.hidden = !running;
      item.bar.max = job.slices || 1;
      item.bar.value = job.done + (job.steps ? job.step / job.steps : 0);
      item.left.textContent = job.seconds_left === null ? 'starting' : `${clock(job.seconds_left)} left`;
      item.note.textContent = job.message;
      item.cancel.hidden = !waits;
      item.open.hidden = job.state !== 'done';
      item.result = job.result;
    }
    for (const [id, item] of this.items) if (!shown.some((job) => job.id === id)) { item.root.remove(); this.items.delete(id); }
  }

  item(job) {
    const make = (tag, values = {}) => Object.assign(document.createElement(tag), values);
    const item = {
      root: make('li'), text: make('div'), bar: make('progress'), left: make('div', { className: 'note' }),
      note: make('div', { className: 'note' }), cancel: this.button('Cancel', () => this.cancel(job.id)),
      open: this.button('Open', () => this.finished(item.result, true)),
    };
    item.root.dataset.job = job.id;
    item.bar.ariaLabel = `progress of ${job.name}`;
    item.root.append(item.text, item.bar, item.left, item.note, item.cancel, item.open);
    return item;
  }

  button(text, act) {
    const made = Object.assign(document.createElement('button'), { textContent: text, type: 'button' });
    made.addEventListener('click', act);
    return made;
  }

  async cancel(id) {
    try { await fetched(`/api/jobs/${id}`, { method: 'DELETE' }); } catch (error) { this.refuse(error); }
  }
}
