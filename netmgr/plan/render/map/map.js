"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = name => document.getElementById(name);
const here = at("here"), said = at("said"), find = at("find");
const make = (tag, text) => { const node = document.createElement(tag); node.textContent = text; return node; };

// Integers are BigInt throughout: IPv6 addresses have 128 bits.
function parse(text) {
  if (!text.includes(":")) {
    const parts = text.split(".");
    if (parts.length !== 4 || !parts.every(part => /^\d{1,3}$/.test(part) && Number(part) < 256)) return null;
    return { family: 4, value: parts.reduce((sum, part) => sum * 256n + BigInt(part), 0n) };
  }
  const [head, tail] = text.split("::"), words = part => part ? part.split(":") : [];
  const front = words(head), back = tail === undefined ? [] : words(tail), gap = 8 - front.length - back.length;
  if (gap < 0 || (tail === undefined && gap)) return null;
  const all = [...front, ...Array(gap).fill("0"), ...back];
  if (!all.every(word => /^[0-9a-f]{1,4}$/i.test(word))) return null;
  return { family: 6, value: all.reduce((sum, word) => sum * 65536n + BigInt("0x" + word), 0n) };
}

function show(family, value) {
  if (family === 4) return [24n, 16n, 8n, 0n].map(shift => value >> shift & 255n).join(".");
  const words = [...Array(8).keys()].map(index => (value >> BigInt(112 - 16 * index) & 65535n).toString(16));
  return words.join(":").replace(/(^|:)0(:0)+(:|$)/, "::");
}

// The inverse of the drawing: which cell of the curve a point is in.
function cell(x, y, order) {
  let index = 0n;
  for (let side = 2 ** (order - 1); side >= 1; side /= 2) {
    const right = x >= side, down = y >= side;
    index = index * 4n + BigInt(right ? (down ? 2 : 3) : (down ? 1 : 0));
    if (right) x -= side;
    if (down) y -= side;
    if (!down) { if (right) { x = side - 1 - x; y = side - 1 - y; } [x, y] = [y, x]; }
  }
  return index;
}

const width = family => family === 4 ? 32 : 128;
const holds = (block, family, value) => block.family === family &&
  value >> BigInt(width(family) - block.length) === BigInt(block.value) >> BigInt(width(family) - block.length);
const innermost = (regions, family, value) =>
  regions.filter(region => holds(region, family, value)).sort((one, other) => other.length - one.length)[0];

// The pairs that say what is at an address; `region` is free space where it is undefined.
function about(region, value) {
  if (!region) return [["state", "free"]];
  const pairs = [["prefix", region.prefix], ["owner", region.owner], ["for", region.role],
    ["state", region.owner ? data.states[region.use] : ""], ["note", region.note]];
  if (region.nodes) {
    const { stem, first, base, stride } = region.nodes;
    pairs.push(["node", stem + "-" + (BigInt(first) + (value - BigInt(base)) / BigInt(stride))]);
  }
  return pairs.filter(pair => pair[1]);
}

// Only what the keyboard chose is said aloud: a pointer passes hundreds of blocks.
function select(view, value, aloud, region = innermost(view.regions, view.family, value)) {
  const address = show(view.family, value), pairs = about(region, value), list = make("dl", "");
  for (const [name, text] of pairs) list.append(make("dt", name), make("dd", text));
  here.replaceChildren(make("b", address), list);
  if (aloud) said.textContent = [address, ...pairs.map(pair => pair[1])].join(", ");
  document.querySelectorAll("rect.pointed").forEach(node => node.remove());
  document.querySelectorAll("tr.pointed").forEach(node => node.classList.remove("pointed"));
  if (!region) return;
  for (const node of document.querySelectorAll(`[data-prefix="${region.prefix}"]`)) {
    if (node.tagName === "rect") frame(node);
    else node.closest("tr").classList.add("pointed");
  }
}

// In two colours, of which one is seen on whatever is around; last, so that nothing covers it.
function frame(block) {
  for (const name of ["pointed below", "pointed"]) {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const side of ["x", "y", "width", "height"]) line.setAttribute(side, block.getAttribute(side) || 0);
    line.setAttribute("class", name);
    line.dataset.around = block.dataset.prefix;
    block.parentNode.append(line);
  }
}

class Cursor {
  constructor(map) {
    this.view = data.views[Number(map.dataset.view)];
    this.svg = map.querySelector("svg");
    this.order = Math.min(12, Math.floor((width(this.view.family) - this.view.length) / 2));
    this.side = this.svg.viewBox.baseVal.width;
    this.x = this.y = this.side / 64;
    this.lines = ["cursor below", "cursor"].map(name => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      line.setAttribute("class", name);
      return line;
    });
    map.addEventListener("mousemove", event => this.point(event));
    map.addEventListener("keydown", event => this.key(event));
    map.addEventListener("blur", () => this.lines.forEach(line => line.remove()));
  }

  address(x, y) {
    const cells = 2 ** this.order, at = part => Math.min(cells - 1, Math.max(0, Math.floor(part / this.side * cells)));
    const shift = BigInt(width(this.view.family) - this.view.length - 2 * this.order);
    return BigInt(this.view.value) + (cell(at(x), at(y), this.order) << shift);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect(), scale = this.side / box.width;
    const value = this.address((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    const region = this.view.regions.find(item => item.prefix === event.target.dataset.prefix);
    // A block smaller than a cell is recognised by its shape, not by the cell's first address.
    const small = region && !holds(region, this.view.family, value);
    select(this.view, small ? BigInt(region.value) : value, false);
  }

  key(event) {
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const way = ways[event.key];
    if (!way) return;
    event.preventDefault();
    [this.x, this.y] = this.next(way, event.shiftKey);
    const [x, y] = [this.x, this.y];
    for (const line of this.lines) {
      line.setAttribute("d", `M${x - 9} ${y}H${x - 3}M${x + 3} ${y}H${x + 9}M${x} ${y - 9}V${y - 3}M${x} ${y + 3}V${y + 9}`);
      this.svg.append(line);
    }
    select(this.view, this.address(x, y), true);
  }

  // The nearest spot in a direction that belongs to something else, or a small step.
  next([right, down], small) {
    const step = this.side / 2 ** Math.min(this.order, 7), inside = spot => Math.min(this.side - step / 2, Math.max(step / 2, spot));
    const name = (x, y) => (innermost(this.view.regions, this.view.family, this.address(x, y)) || {}).prefix;
    const now = name(this.x, this.y);
    let [x, y] = [this.x, this.y];
    for (let count = 0; count < 2 ** 7; count++) {
      const [last, above] = [x, y];
      x = inside(x + right * step);
      y = inside(y + down * step);
      if (small || (x === last && y === above) || name(x, y) !== now) break;
    }
    return [x, y];
  }
}
document.querySelectorAll(".map").forEach(map => new Cursor(map));

document.querySelectorAll("button[data-prefix]").forEach(button => button.addEventListener("click", () => {
  const view = data.views[Number(button.dataset.view)];
  const region = view.regions.find(item => item.prefix === button.dataset.prefix) || { ...view, prefix: button.dataset.prefix, owner: "", role: "", use: "" };
  select(view, BigInt(region.value), true, region);
}));

function light(owner) {
  for (const node of document.querySelectorAll("rect[data-prefix]")) {
    const view = data.views[Number(node.closest(".map").dataset.view)];
    const region = view.regions.find(item => item.prefix === node.dataset.prefix);
    node.classList.toggle("dim", owner !== "" && region.owner !== owner);
  }
  for (const row of document.querySelectorAll("tbody tr")) row.classList.toggle("dim", owner !== "" && row.dataset.owner !== owner);
  for (const button of document.querySelectorAll("#owners button"))
    button.setAttribute("aria-pressed", String(owner !== "" && button.dataset.owner === owner));
}
at("owners").addEventListener("click", event => {
  const button = event.target.closest("button");
  if (button) light(button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.owner);
});

find.addEventListener("input", () => {
  const text = find.value.trim(), address = parse(text);
  light(data.owners.includes(text) ? text : "");
  if (!address) return;
  const view = data.views.find(item => holds(item, address.family, address.value));
  if (view) select(view, address.value, true);
  else said.textContent = here.textContent = text + " is in no pool";
});
at("search").addEventListener("submit", event => event.preventDefault());

if (data.changed) {
  const former = at("former");
  at("switch").hidden = false;
  former.addEventListener("change", () => {
    at("before").hidden = !former.checked;
    at("after").hidden = former.checked;
  });
}

// Paper has no way to open what is folded.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(node => { node.open = true; }));
