// Keeps the page's files, so that it works without a network after the first load.
const FILES = ["./", "index.html", "page.css", "page.js", "linattn.mjs", "linattn.wasm", "digits.linattn", "text.linattn"];
self.addEventListener("install", (event) => event.waitUntil(caches.open("linattn").then((cache) => cache.addAll(FILES))));
self.addEventListener("fetch", (event) => {
  const kept = async () => (await caches.match(event.request)) ?? Response.error();
  event.respondWith(fetch(event.request).catch(kept)); // a newer file where there is a network
});
