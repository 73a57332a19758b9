// The page: a digit to complete, a text to continue, and the state as a picture.
import { Decoder } from "./linattn.mjs";

const SIDE = 28, HALF = SIDE * SIDE / 2, ROWS = 4, GAP = 2, MOST_TOKENS = 4000;
const FRAME = 12; // milliseconds of drawing tokens before the page is painted
const at = (id) => document.getElementById(id);
const say = (id, text) => (at(id).textContent = text);
const kilobytes = (bytes) => `${(bytes / 1024).toLocaleString("en", { maximumFractionDigits: 1 })} KiB`;
const reporting = (id, work) => () => work().catch((error) => say(id, error.message));
const anySeed = () => Math.floor(Math.random() * 2 ** 31);

function report(place, { info }, rows, tokens, began) {
  const rate = Math.round((1000 * rows * tokens) / (performance.now() - began)).toLocaleString("en");
  const cache = 2 * 4 * info.layers * info.width * tokens; // of keys and values, for softmax attention
  say(place, `${rate} tokens a second. State: ${kilobytes(rows * info.stateBytes)}; a cache of keys and values: ` +
    `${kilobytes(rows * cache)}.`);
}

// Calls work() until it returns false, and paints in between; another job of the same kind ends it.
const jobs = {};
async function repeat(kind, work, paint) {
  const own = (jobs[kind] = Symbol());
  for (let goes = true; goes && jobs[kind] === own;) {
    const end = performance.now() + FRAME;
    while (goes && performance.now() < end) goes = work();
    paint();
    await new Promise(requestAnimationFrame);
  }
}

// Levels from 0 to 1 as a picture of gray pixels.
function paintGray(id, levels, left = 0, top = 0) {
  const context = at(id).getContext("2d"), image = context.createImageData(SIDE, SIDE);
  levels.forEach((level, i) => image.data.set([255 * level, 255 * level, 255 * level, 255], 4 * i));
  context.putImageData(image, left, top);
}

function digits(decoder) {
  const most = decoder.info.levels - 1, upper = new Float32Array(HALF);
  const paintUpper = () => paintGray("drawing", [...upper, ...Array(HALF).fill(0.16)]);

  async function complete() {
    const prompt = Array.from(upper, (x) => Math.round(x * most));
    const rows = Array.from({ length: ROWS }, () => [...prompt]);
    const state = decoder.newState(ROWS), seed = anySeed(), began = performance.now();
    try {
      decoder.read(state, rows.flat());
      await repeat("digits", () => {
        const tokens = decoder.sample(state, { seed });
        tokens.forEach((token, i) => rows[i].push(token));
        if (rows[0].length === 2 * HALF) return false;
        decoder.read(state, tokens);
        return true;
      }, () => rows.forEach((row, i) =>
        paintGray("completions", row.map((x) => x / most), (i % 2) * (SIDE + GAP), (i >> 1) * (SIDE + GAP))));
      report("digits-status", decoder, ROWS, rows[0].length, began);
    } finally {
      decoder.free(state);
    }
  }

  function stroke(event) {
    const box = at("drawing").getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * SIDE, y = ((event.clientY - box.top) / box.height) * SIDE;
    upper.forEach((level, i) => {
      const distance = Math.hypot((i % SIDE) + 0.5 - x, Math.floor(i / SIDE) + 0.5 - y);
      upper[i] = Math.max(level, Math.min(1, Math.max(0, 1.9 - distance)));
    });
    paintUpper();
  }

  const listen = (id, event, work) => at(id).addEventListener(event, work);
  listen("drawing", "pointerdown", (event) => {
    at("drawing").setPointerCapture(event.pointerId);
    stroke(event);
  });
  listen("drawing", "pointermove", (event) => event.buttons && stroke(event));
  listen("drawing", "pointerup", reporting("digits-status", complete));
  listen("clear", "click", () => {
    upper.fill(0);
    paintUpper();
  });
  paintUpper();
}

// Each number is a pixel: positive ones red, negative ones blue, the largest of a part of the state brightest.
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
      image.data.set([255 * share, 90 * Math.abs(share), -255 * share, 255], 4 * place++);
    }
  }
  context.putImageData(image, 0, 0);
}

function text(decoder) {
  async function go() {
    const bytes = new TextDecoder(), state = decoder.newState(1), seed = anySeed(), began = performance.now();
    const temperature = Number(at("temperature").value);
    let shown = at("prompt").value, tokens = 0;
    at("continue").disabled = true;
    at("stop").disabled = false;
    try {
      const prompt = decoder.encode(shown || "\n");
      decoder.read(state, prompt);
      await repeat("text", () => {
        const [token] = decoder.sample(state, { temperature, seed });
        shown += bytes.decode(decoder.piece(token), { stream: true });
        decoder.read(state, [token]);
        return ++tokens < MOST_TOKENS;
      }, () => {
        say("output", shown);
        at("output").scrollTop = at("output").scrollHeight;
        report("text-status", decoder, 1, prompt.length + tokens, began);
        paintState(decoder, state);
      });
    } finally {
      decoder.free(state);
      at("continue").disabled = false;
      at("stop").disabled = true;
    }
  }
  at("continue").addEventListener("click", reporting("text-status", go));
  at("stop").addEventListener("click", () => (jobs.text = null));
}

async function fetched(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: expected a file beside the page, got status ${answer.status}.`);
  return answer.arrayBuffer();
}

async function start(module, name, section) {
  try {
    const decoder = await Decoder.open(await module, await fetched(`${name}.linattn`));
    section(decoder);
    say(`${name}-status`, `Ready: ${kilobytes(decoder.info.modelBytes)} of weights.`);
  } catch (error) {
    say(`${name}-status`, error.message);
  }
}

const library = fetched("linattn.wasm").then((bytes) => WebAssembly.compile(bytes));
await Promise.all([start(library, "digits", digits), start(library, "text", text)]);
document.body.dataset.ready = "true";
navigator.serviceWorker?.register("offline.js").catch(() => {});
