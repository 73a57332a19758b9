// The page: a digit to complete, a text to continue, and the state as a picture.
import { Decoder } from "./linattn.mjs";

const SIDE = 28, HALF = SIDE * SIDE / 2, ROWS = 4, GAP = 2, MOST_TOKENS = 4000;
const PER_FRAME = 6; // tokens drawn before the page is painted: slow enough to be watched
const at = (id) => document.getElementById(id);
const say = (id, text) => (at(id).textContent = text);
const listen = (id, event, work) => at(id).addEventListener(event, work);
// Calls work(); why it fails becomes the status of a section.
const reporting = (section, work) => () => work().catch((error) => say(`${section}-status`, error.message));
const kilobytes = (bytes) => `${(bytes / 1024).toLocaleString("en", { maximumFractionDigits: 1 })} KiB`;

function report(section, { info }, rows, read, rate) {
  const cache = 2 * 4 * info.layers * info.width * read; // of keys and values, for softmax attention
  say(`${section}-status`, `It can draw ${Math.round(rate).toLocaleString("en")} tokens a second. ` +
    `State: ${kilobytes(rows * info.stateBytes)}; a cache of keys and values: ${kilobytes(rows * cache)}.`);
}

// Reads a prompt, draws tokens of all rows until take(tokens) returns false, and paints in between. The next call for a
// section ends the one before.
const jobs = {};
async function draw(section, decoder, prompt, rows, temperature, take, paint) {
  const own = (jobs[section] = Symbol()), state = decoder.newState(rows);
  const seed = Math.floor(Math.random() * 2 ** 31);
  let drawn = 0, spent = 0; // of each row; milliseconds, of which some clocks count whole ones
  try {
    decoder.read(state, prompt);
    for (let goes = true; goes && jobs[section] === own;) {
      const began = performance.now();
      for (let n = 0; goes && n < PER_FRAME; ++n, ++drawn) {
        const tokens = decoder.sample(state, { temperature, seed });
        goes = take(tokens);
        if (goes) decoder.read(state, tokens);
      }
      spent += performance.now() - began;
      paint(state);
      report(section, decoder, rows, prompt.length / rows + drawn, (1000 * rows * drawn) / Math.max(spent, 1));
      await new Promise(requestAnimationFrame);
    }
  } finally {
    decoder.free(state);
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

  function complete() {
    const prompt = Array.from(upper, (x) => Math.round(x * most));
    const pictures = Array.from({ length: ROWS }, () => [...prompt]);
    return draw("digits", decoder, pictures.flat(), ROWS, 1, (tokens) => {
      tokens.forEach((token, i) => pictures[i].push(token));
      return pictures[0].length < 2 * HALF;
    }, () => pictures.forEach((picture, i) =>
      paintGray("completions", picture.map((x) => x / most), (i % 2) * (SIDE + GAP), (i >> 1) * (SIDE + GAP))));
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

  listen("drawing", "pointerdown", (event) => {
    at("drawing").setPointerCapture(event.pointerId);
    stroke(event);
  });
  listen("drawing", "pointermove", (event) => event.buttons && stroke(event));
  listen("drawing", "pointerup", reporting("digits", complete));
  listen("clear", "click", () => {
    jobs.digits = null;
    upper.fill(0);
    paintUpper();
    at("completions").getContext("2d").reset();
  });
  paintUpper();
}

// Each number is a pixel: positive ones red, negative ones blue, the largest of a part of the state brightest.
function paintState(decoder, state) {
  const parts = decoder.numbers(state), count = parts.reduce((sum, part) => sum + part.length, 0);
  const canvas = at("state"), width = Math.ceil(count / canvas.height);
  if (canvas.width !== width) canvas.width = width;
  const context = canvas.getContext("2d"), image = context.createImageData(width, canvas.height);
  let place = 0;
  for (const part of parts) {
    const largest = part.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-9);
    for (const x of part) {
      const share = Math.sign(x) * Math.sqrt(Math.abs(x) / largest);
      image.data.set([255 * share, 90 * Math.abs(share), -255 * share, 255], 4 * place++);
    }
  }
  context.putImageData(image, 0, 0);
}

function text(decoder) {
  listen("continue", "click", reporting("text", async () => {
    const bytes = new TextDecoder(), temperature = Number(at("temperature").value);
    let shown = at("prompt").value, drawn = 0;
    await draw("text", decoder, decoder.encode(shown || "\n"), 1, temperature, ([token]) => {
      shown += bytes.decode(decoder.piece(token), { stream: true });
      return ++drawn < MOST_TOKENS;
    }, (state) => {
      say("output", shown);
      at("output").scrollTop = at("output").scrollHeight;
      paintState(decoder, state);
    });
  }));
  listen("stop", "click", () => (jobs.text = null));
}

async function fetched(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: expected a file beside the page, got status ${answer.status}.`);
  return answer.arrayBuffer();
}

const library = fetched("linattn.wasm").then((bytes) => WebAssembly.compile(bytes));
for (const [section, begin] of Object.entries({ digits, text })) {
  reporting(section, async () => {
    const decoder = await Decoder.open(await library, await fetched(`${section}.linattn`));
    begin(decoder);
    say(`${section}-status`, `Ready: ${kilobytes(decoder.info.modelBytes)} of weights.`);
  })();
}
navigator.serviceWorker?.register("offline.js").catch(() => {});
