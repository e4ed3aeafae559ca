/* SPDX-License-Identifier: MIT */
/* Theme and heat maps. Without it the page holds the same numbers and grey images. */
(function () {
  "use strict";
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const maps = [];

  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : dark.matches;
  }

  function tell() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    maps.forEach(paint);
  }

  button.hidden = false;
  button.addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  dark.addEventListener("change", tell);

  function colour(name) {
    const hex = getComputedStyle(root).getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  }

  /* Levels 0..255 as colours. A step above nothing and a root make single members visible. */
  function ramp(most) {
    const stops = ["--ramp0", "--ramp1", "--ramp2", "--ramp3", "--ramp4"].map(colour);
    const table = new Uint32Array(256);
    for (let level = 0; level < 256; level++) {
      const at = level === 0 ? 0 : 0.8 + 3.2 * Math.min(1, Math.sqrt(level / most));
      const i = Math.min(3, Math.floor(at));
      const rgb = stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (at - i)));
      table[level] = 0xff000000 | (rgb[2] << 16) | (rgb[1] << 8) | rgb[0];
    }
    return table;
  }

  /* Each pixel shows the fullest of the cells under it: nothing is lost where the map shrinks. */
  function fullest(map, x0, x1, y0, y1) {
    let level = 0;
    for (let y = y0; y < y1; y++)
      for (let x = x0; x < x1; x++) level = Math.max(level, map.levels[y * map.width + x]);
    return level;
  }

  function cells(pixel, pixels, count) {
    const first = Math.floor((pixel * count) / pixels);
    return [first, Math.max(first + 1, Math.floor(((pixel + 1) * count) / pixels))];
  }

  function paint(map) {
    const canvas = map.canvas, scale = window.devicePixelRatio || 1;
    const w = Math.max(1, Math.round(canvas.clientWidth * scale));
    const h = Math.max(1, Math.round(canvas.clientHeight * scale));
    canvas.width = w;
    canvas.height = h;
    const context = canvas.getContext("2d"), image = context.createImageData(w, h);
    const pixels = new Uint32Array(image.data.buffer), table = ramp(map.most);
    const rgb = colour("--void"), hatch = 0xff000000 | (rgb[2] << 16) | (rgb[1] << 8) | rgb[0];
    for (let y = 0; y < h; y++) {
      const [y0, y1] = cells(y, h, map.height);
      const end = (map.frontier[y0] / map.places) * w;
      for (let x = 0; x < w; x++) {
        const [x0, x1] = cells(x, w, map.width);
        const level = fullest(map, x0, x1, y0, y1);
        const blind = level === 0 && x >= end && ((x + y) / scale) % 8 < 4;
        pixels[y * w + x] = blind ? hatch : table[level];
      }
    }
    context.putImageData(image, 0, 0);
  }

  function number(n) {
    return n.toLocaleString("en-US", { maximumFractionDigits: 1 });
  }

  function tipText(map, x, y) {
    const first = Math.floor((y * data.rows.measured) / map.height + 0.9999);
    const row = Math.min(first, data.rows.measured - 1);
    const where = "row " + number(data.rows.row[row]) + ", token " + number(data.rows.token[row]);
    const request = data.requests > 1 ? ", request " + data.rows.request[row] : "";
    const from = x * map.bin, to = Math.min(map.places, from + map.bin) - 1;
    const what = map.name === "Blocks" ? "blocks " : "positions ";
    return [where + request, number(map.levels[y * map.width + x] * map.scale) + " in " + what +
            number(from) + "–" + number(to)];
  }

  function follow(map, tip) {
    const area = map.canvas.parentElement;
    area.addEventListener("pointermove", function (event) {
      const box = map.canvas.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) / box.width) * map.width);
      const y = Math.floor(((event.clientY - box.top) / box.height) * map.height);
      if (x < 0 || y < 0 || x >= map.width || y >= map.height) return;
      const lines = tipText(map, x, y);
      tip.replaceChildren(lines[0], document.createElement("br"), lines[1]);
      tip.hidden = false;
      const left = event.clientX - box.left;
      tip.style.left = Math.max(0, Math.min(left + 12, box.width - tip.offsetWidth)) + "px";
      tip.style.top = Math.max(0, event.clientY - box.top - tip.offsetHeight - 12) + "px";
    });
    area.addEventListener("pointerleave", function () { tip.hidden = true; });
  }

  /* The image's grey levels, read once. */
  function levels(image) {
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth;
    canvas.height = image.naturalHeight;
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const rgba = context.getImageData(0, 0, canvas.width, canvas.height).data;
    const out = new Uint8Array(canvas.width * canvas.height);
    for (let i = 0; i < out.length; i++) out[i] = rgba[4 * i];
    return out;
  }

  function show(image) {
    const name = image.dataset.list;
    const layer = data.layers.find((l) => "Layer " + l.layer === name);
    const heat = layer ? layer.heat : data.blocks.heat;
    const map = {
      name: name, bin: heat.bin, scale: heat.scale, frontier: heat.frontier, places: heat.places,
      width: image.naturalWidth, height: image.naturalHeight, levels: levels(image),
      canvas: document.createElement("canvas"),
    };
    map.most = Math.max(1, map.levels.reduce((a, b) => Math.max(a, b), 0));
    map.canvas.setAttribute("role", "img");
    map.canvas.setAttribute("aria-label", image.alt);
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    image.replaceWith(map.canvas, tip);
    maps.push(map);
    follow(map, tip);
    paint(map);
  }

  document.querySelectorAll("img[data-list]").forEach(function (image) {
    image.decode().then(() => show(image), () => {});
  });
  let waiting = 0;
  window.addEventListener("resize", function () {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => maps.forEach(paint));
  });
  tell();
})();
