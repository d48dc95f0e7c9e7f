// New reconstructions: choose or drop a scan, start, watch, cancel.

import { Layer, fetched, picture, query } from './draw.js';

const at = (id) => document.getElementById(id);
const option = (value, text = value) => Object.assign(document.createElement('option'), { value, textContent: text });

export class Jobs {
  constructor(finished) {
    this.finished = finished; // called with the name of a new result
    this.known = new Map();
    at('input').addEventListener('change', () => this.describe(at('input').value));
    at('file').addEventListener('change', () => at('file').files[0] && this.upload(at('file').files[0]));
    at('wish').addEventListener('submit', (event) => { event.preventDefault(); this.start(); });
    const drop = at('drop');
    for (const name of ['dragenter', 'dragover']) {
      drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add('over'); });
    }
    drop.addEventListener('dragleave', () => drop.classList.remove('over'));
    drop.addEventListener('drop', (event) => {
      event.preventDefault();
      drop.classList.remove('over');
      if (event.dataTransfer.files[0]) this.upload(event.dataTransfer.files[0]);
    });
  }

  async open() {
    const choices = await (await fetched('/api/choices')).json();
    this.limit = choices.upload_limit;
    at('input').replaceChildren(option('', '–'), ...choices.inputs.map((name) => option(name)));
    at('mask').replaceChildren(option('', 'as it was measured'), ...choices.masks.map((name) => option(name, name.replaceAll('_', ' '))));
    at('sampler').replaceChildren(...choices.samplers.map((name) => option(name, name === 'mean' ? 'mean (one call)' : name)));
    at('sampler').value = 'dpmpp_2m_sde';
    this.poll();
  }

  refuse(error) { at('refused').textContent = error ? error.message ?? error : ''; }

  async upload(file) {
    this.refuse('');
    if (file.size > this.limit) return this.refuse(`${file.name} is larger than ${this.limit / 1e6} MB, which is the limit`);
    at('described').textContent = `reading ${file.name} …`;
    try {
      const answer = await fetched(`/api/uploads?${query({ name: file.name })}`, { method: 'POST', body: file });
      const found = await answer.json();
      at('input').append(option(found.input, file.name));
      at('input').value = found.input;
      this.show(found);
    } catch (error) {
      at('described').textContent = '';
      this.refuse(error);
    }
  }

  async describe(name) {
    this.refuse('');
    at('start').disabled = true;
    at('described').textContent = '';
    if (!name) return;
    try { this.show(await (await fetched(`/api/input?${query({ name })}`)).json()); } catch (error) { this.refuse(error); }
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
    const wish = { input: at('input').value, mask: at('mask').value, sampler: at('sampler').value };
    for (const name of ['acceleration', 'samples', 'steps', 'seed']) wish[name] = Number(at(name).value);
    try {
      await fetched('/api/jobs', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(wish) });
      await this.poll(true);
    } catch (error) { this.refuse(error); }
  }

  async poll(once = false) {
    try {
      const jobs = await (await fetched('/api/jobs')).json();
      for (const job of jobs) {
        const before = this.known.get(job.id);
        this.known.set(job.id, job.state);
        if (before && before !== 'done' && job.state === 'done') this.finished(job.result);
      }
      this.draw(jobs);
      const running = jobs.find((job) => job.state === 'running');
      at('live').hidden = !running;
      if (running) await this.preview(running);
    } catch { /* the server is away for a moment; the next round asks again */ }
    if (!once) setTimeout(() => this.poll(), document.hidden ? 3000 : 400);
  }

  async preview(job) {
    at('live-title').textContent = `${job.name}, slice ${job.done + 1} of ${job.slices}: step ${job.step} of ${job.steps}`;
    let layer;
    try {
      const answer = await fetched(`/api/jobs/${job.id}/preview`);
      layer = new Layer('sample', await answer.arrayBuffer(), answer.headers);
    } catch { return; } // between two slices there is nothing to see
    const canvas = at('preview'), gap = 4;
    canvas.width = layer.count * (layer.width + gap) - gap;
    canvas.height = layer.height;
    const context = canvas.getContext('2d');
    for (let k = 0; k < layer.count; k++) {
      context.drawImage(picture(layer.pixels(0, layer.high * 0.9, k)), k * (layer.width + gap), 0);
    }
    canvas.dataset.step = job.step;
  }

  draw(jobs) {
    const entries = jobs.slice(0, 30).map((job) => {
      const item = document.createElement('li'), text = document.createElement('div');
      item.className = job.state;
      item.dataset.job = job.id;
      item.dataset.state = job.state;
      text.textContent = `${job.name}: ${job.state}`;
      item.append(text);
      if (job.state === 'running') {
        const bar = Object.assign(document.createElement('progress'), { max: job.slices || 1 });
        bar.value = job.done + (job.steps ? job.step / job.steps : 0);
        const left = Object.assign(document.createElement('div'), { className: 'note' });
        left.textContent = job.seconds_left === null ? 'starting' : `${Math.ceil(job.seconds_left)} s left`;
        item.append(bar, left);
      }
      if (job.message) item.append(Object.assign(document.createElement('div'), { className: 'note', textContent: job.message }));
      if (job.state === 'waiting' || job.state === 'running') item.append(this.button('Cancel', () => this.cancel(job.id)));
      if (job.state === 'done') item.append(this.button('Open', () => this.finished(job.result)));
      return item;
    });
    const shown = JSON.stringify(jobs);
    if (shown !== this.shown) at('jobs').replaceChildren(...entries);
    this.shown = shown;
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
