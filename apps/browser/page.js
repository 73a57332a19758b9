// The page: a digit to complete, a text to continue, and the state as a picture.
import { Decoder } from "./linattn.mjs";

const SIDE = 28, HALF = SIDE * SIDE / 2, ROWS = 4;
const FRAME = 12; // milliseconds of drawing tokens before the page is painted
const at = (id) => document.getElementById(id);
const painted = () => new Promise(requestAnimationFrame);
const kilobytes = (bytes) => `${(bytes / 1024).toLocaleString("en", { maximumFractionDigits: 1 })} KiB`;

function say(place, text) {
  at(place).textContent = text;
}

// A cache of keys and values, which softmax attention needs, for so many tokens.
function cacheBytes(info, tokens) {
  return 2 * 4 * info.layers * info.width * tokens;
}

function report(place, decoder, rows, tokens, seconds) {
  const { info } = decoder;
  const rate = Math.round((rows * tokens) / seconds).toLocaleString("en");
  say(place, `${rate} tokens a second. State: ${kilobytes(rows * info.stateBytes)}; a cache of keys and values: ` +
    `${kilobytes(rows * cacheBytes(info, tokens))}.`);
}

// Calls work() until it returns false, and paints in between; another job of the same kind ends it.
const jobs = {};
async function repeat(kind, work, paint) {
  const own = (jobs[kind] = Symbol());
  for (;;) {
    const end = performance.now() + FRAME;
    let goes = true;
    while (goes && performance.now() < end) goes = work();
    paint();
    if (!goes) return;
    await painted();
    if (jobs[kind] !== own) return;
  }
}

async function digits(decoder) {
  const drawing = at("drawing").getContext("2d"), out = at("completions").getContext("2d");
  const upper = new Float32Array(HALF);

  function paintUpper() {
    const image = drawing.createImageData(SIDE, SIDE);
    for (let i = 0; i < SIDE * SIDE; ++i) image.data.set([...Array(3).fill(i < HALF ? upper[i] : 40), 255], 4 * i);
    drawing.putImageData(image, 0, 0);
  }

  function paintRow(row, pixels) {
    const image = out.createImageData(SIDE, SIDE);
    pixels.forEach((level, i) => image.data.set([level, level, level, 255], 4 * i));
    out.putImageData(image, (row % 2) * (SIDE + 2), Math.floor(row / 2) * (SIDE + 2));
  }

  async function complete() {
    const most = decoder.info.levels - 1, prompt = Array.from(upper, (x) => Math.round((x / 255) * most));
    const rows = Array.from({ length: ROWS }, () => [...prompt]);
    const state = decoder.newState(ROWS), seed = Math.floor(Math.random() * 2 ** 31);
    const began = performance.now();
    const show = () => rows.forEach((row, i) => paintRow(i, row.map((x) => (x / most) * 255)));
    try {
      decoder.read(state, rows.flat(), HALF);
      await repeat("digits", () => {
        const tokens = decoder.sample(state, ROWS, { seed });
        tokens.forEach((token, i) => rows[i].push(token));
        if (rows[0].length === 2 * HALF) return false;
        decoder.read(state, tokens, 1);
        return true;
      }, show);
      report("digits-status", decoder, ROWS, rows[0].length, (performance.now() - began) / 1000);
    } finally {
      decoder.free(state);
    }
  }

  function stroke(event) {
    const box = at("drawing").getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * SIDE, y = ((event.clientY - box.top) / box.height) * SIDE;
    for (let i = 0; i < HALF; ++i) {
      const distance = Math.hypot((i % SIDE) + 0.5 - x, Math.floor(i / SIDE) + 0.5 - y);
      upper[i] = Math.max(upper[i], 255 * Math.min(1, Math.max(0, 1.9 - distance)));
    }
    paintUpper();
  }

  at("drawing").addEventListener("pointerdown", (event) => {
    at("drawing").setPointerCapture(event.pointerId);
    stroke(event);
  });
  at("drawing").addEventListener("pointermove", (event) => event.buttons && stroke(event));
  at("drawing").addEventListener("pointerup", complete);
  at("clear").addEventListener("click", () => {
    upper.fill(0);
    paintUpper();
  });
  paintUpper();
  say("digits-status", `Ready: ${kilobytes(decoder.info.modelBytes)} of weights.`);
}

function paintState(decoder, state) {
  const numbers = decoder.numbers(state), count = numbers.reduce((sum, part) => sum + part.length, 0);
  const canvas = at("state"), width = Math.ceil(count / canvas.height);
  if (canvas.width !== width) canvas.width = width;
  const context = canvas.getContext("2d"), image = context.createImageData(width, canvas.height);
  let place = 0;
  for (const part of numbers) {
    const scale = part.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-9);
    for (const x of part) {
      const share = Math.sign(x) * Math.sqrt(Math.abs(x) / scale);
      image.data.set([255 * Math.max(0, share), 90 * Math.abs(share), 255 * Math.max(0, -share), 255], 4 * place++);
    }
  }
  context.putImageData(image, 0, 0);
}

async function text(decoder) {
  async function go() {
    at("continue").disabled = true;
    at("stop").disabled = false;
    const bytes = new TextDecoder(), state = decoder.newState(1), seed = Math.floor(Math.random() * 2 ** 31);
    const temperature = Number(at("temperature").value), began = performance.now();
    let shown = at("prompt").value, tokens = 0;
    try {
      const prompt = decoder.encode(shown || "\n");
      decoder.read(state, prompt, prompt.length);
      await repeat("text", () => {
        const [token] = decoder.sample(state, 1, { temperature, seed });
        shown += bytes.decode(decoder.piece(token), { stream: true });
        decoder.read(state, [token], 1);
        return ++tokens < 4000;
      }, () => {
        say("output", shown);
        at("output").scrollTop = at("output").scrollHeight;
        report("text-status", decoder, 1, prompt.length + tokens, (performance.now() - began) / 1000);
        paintState(decoder, state);
      });
    } catch (error) {
      say("text-status", error.message);
    } finally {
      decoder.free(state);
      at("continue").disabled = false;
      at("stop").disabled = true;
    }
  }
  at("continue").addEventListener("click", go);
  at("stop").addEventListener("click", () => (jobs.text = null));
  say("text-status", `Ready: ${kilobytes(decoder.info.modelBytes)} of weights.`);
}

async function fetched(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: expected a file beside the page, got status ${answer.status}.`);
  return answer.arrayBuffer();
}

async function start() {
  const module = await WebAssembly.compile(await fetched("linattn.wasm"));
  const sections = [["digits-status", "digits.linattn", digits], ["text-status", "text.linattn", text]];
  await Promise.all(sections.map(async ([place, file, section]) => {
    try {
      await section(await Decoder.open(module, await fetched(file)));
    } catch (error) {
      say(place, error.message);
    }
  }));
  document.body.dataset.ready = "true";
  if ("serviceWorker" in navigator) navigator.serviceWorker.register("offline.js").catch(() => {});
}

start();
