// liblinattn in a page: the C interface of linattn.h with arrays in place of pointers.

// Functions of the system interface, which a decoder does not use.
const system = new Proxy({}, { get: () => () => 8 }); // no such file

// The addresses of `linattn_info`'s fields, eight bytes each.
const INFO = ["levels", "channels", "parameters", "layers", "width", "maxLength", "window", "stateBytes", "modelBytes"];

export class Decoder {
  // A model from the bytes of its file; throws the library's sentence.
  static async open(module, bytes) {
    const { exports } = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: system, env: system });
    exports._initialize?.();
    const own = new Decoder(exports);
    const place = own.put(new Uint8Array(bytes));
    own.model = own.call(() => exports.linattn_open_bytes(place, BigInt(bytes.byteLength), 1), (model) => model !== 0);
    exports.free(place);
    const info = exports.malloc(8 * INFO.length);
    exports.linattn_describe(own.model, info);
    own.info = Object.fromEntries(INFO.map((name, i) => [name, Number(own.view().getBigInt64(info + 8 * i, true))]));
    exports.free(info);
    return own;
  }

  constructor(exports) {
    this.c = exports;
    this.decoder = new TextDecoder();
  }

  view() {
    return new DataView(this.c.memory.buffer);
  }

  // Copies bytes into the library's memory; free() them.
  put(bytes) {
    const place = this.c.malloc(bytes.byteLength || 1);
    new Uint8Array(this.c.memory.buffer).set(bytes, place);
    return place;
  }

  text(place) {
    const bytes = new Uint8Array(this.c.memory.buffer, place);
    return this.decoder.decode(bytes.slice(0, bytes.indexOf(0)));
  }

  // The result of a call, which throws the library's sentence if it fails.
  call(work, succeeded = (status) => status === 0) {
    let result;
    try {
      result = work();
    } catch (trap) {
      throw new Error(this.text(this.c.linattn_error()) || String(trap));
    }
    if (!succeeded(result)) throw new Error(this.text(this.c.linattn_error()));
    return result;
  }

  newState(rows) {
    return this.call(() => this.c.linattn_state_new(this.model, BigInt(rows)), (state) => state !== 0);
  }

  free(state) {
    this.c.linattn_state_free(state);
  }

  // Reads tokens of all rows, one row behind the other.
  read(state, tokens, count) {
    const place = this.put(new Uint8Array(Int32Array.from(tokens).buffer));
    try {
      this.call(() => this.c.linattn_read(state, place, BigInt(count)));
    } finally {
      this.c.free(place);
    }
  }

  // Draws the next token of each row.
  sample(state, rows, { temperature = 1, topP = 0, minP = 0, topK = 0, seed = 0 } = {}) {
    const place = this.c.malloc(56 + 4 * rows * this.info.channels);
    const view = this.view();
    [temperature, topP, minP, 1].forEach((value, i) => view.setFloat64(place + 8 * i, value, true));
    [topK, seed, 0].forEach((value, i) => view.setBigInt64(place + 32 + 8 * i, BigInt(value), true));
    try {
      this.call(() => this.c.linattn_sample(state, place, place + 56));
      return Array.from(new Int32Array(this.c.memory.buffer, place + 56, rows * this.info.channels));
    } finally {
      this.c.free(place);
    }
  }

  encode(text) {
    const bytes = new TextEncoder().encode(text);
    const from = this.put(bytes), to = this.c.malloc(4 * bytes.length + 4);
    try {
      const known = (count) => count >= 0n;
      const count = this.call(() => this.c.linattn_encode(this.model, from, BigInt(bytes.length), to, BigInt(bytes.length)), known);
      return Array.from(new Int32Array(this.c.memory.buffer, to, Number(count)));
    } finally {
      this.c.free(from);
      this.c.free(to);
    }
  }

  // The bytes of a token's text.
  piece(token) {
    const size = this.c.malloc(8);
    const place = this.call(() => this.c.linattn_decode(this.model, token, size), (piece) => piece !== 0);
    const count = Number(this.view().getBigInt64(size, true));
    this.c.free(size);
    return new Uint8Array(this.c.memory.buffer, place, count).slice();
  }

  // All numbers of a state.
  numbers(state) {
    const size = this.c.linattn_state_save(state, 0, 0n), place = this.c.malloc(Number(size));
    this.c.linattn_state_save(state, place, size);
    const header = Number(this.view().getBigUint64(place, true)), start = place + 8 + header;
    const described = JSON.parse(this.decoder.decode(new Uint8Array(this.c.memory.buffer, place + 8, header)));
    const layers = Object.keys(described).filter((name) => name.startsWith("layers."));
    const numbers = layers.map((name) => {
      const [from, to] = described[name].data_offsets;
      return new Float32Array(this.c.memory.buffer.slice(start + from, start + to));
    });
    this.c.free(place);
    return numbers;
  }
}
