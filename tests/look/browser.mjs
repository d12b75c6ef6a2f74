// Looks at pages in Chromium and prints what it finds as JSON: `node browser.mjs <JOB`, where JOB is
// {"browser": PATH, "folder": PATH, "pages": [{"name", "url", "kind": "map" or "landing", "widths"}]}.
// Screenshots go to the folder. `pages.py` starts it and says what is wrong with its findings.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const job = JSON.parse(readFileSync(0, "utf8"));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const HEIGHT = 900;
const HIGHEST = 4000;

const browser = await chromium.launch({
  executablePath: job.browser,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update"],
});

// A page with its complaints and requests; its policy is in force unless axe has to get in.
async function open(url, { theme = "light", width = 1280, bypass = false } = {}) {
  const context = await browser.newContext({
    viewport: { width, height: HEIGHT }, colorScheme: theme, bypassCSP: bypass, reducedMotion: "reduce",
  });
  const page = await context.newPage(), complaints = [], requests = [];
  page.on("console", message => complaints.push(message.text()));
  page.on("pageerror", error => complaints.push(String(error)));
  page.on("request", request => requests.push(request.url()));
  await page.goto(url);
  return { page, complaints, requests, close: () => context.close() };
}

// As `document.activeElement`, in words: tag, name and whether its outline can be seen.
const focused = page => page.evaluate(() => {
  const node = document.activeElement, style = getComputedStyle(node);
  return {
    tag: node.tagName.toLowerCase(), id: node.id, owner: node.dataset.owner || "", prefix: node.dataset.prefix || "",
    map: node.classList.contains("map"), href: node.getAttribute("href") || "",
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    onScreen: node.getBoundingClientRect().right > 0,
  };
});

async function violations(url, theme) {
  const { page, close } = await open(url, { theme, bypass: true });
  await page.evaluate(() => document.querySelectorAll("details").forEach(node => { node.open = true; }));
  await page.addScriptTag({ content: axe });
  const found = await page.evaluate(rules => axe.run(document, { runOnly: rules }), RULES);
  await close();
  return { passed: found.passes.length, failed: found.violations.flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 160)} ${node.failureSummary}`)) };
}

async function tabbed(page) {
  const stops = [];
  for (let count = 0; count < 60; count++) {
    await page.keyboard.press("Tab");
    const stop = await focused(page);
    if (stop.tag === "body") break;
    stops.push(stop);
  }
  return stops;
}

async function skipped(page) {
  await page.keyboard.press("Tab");
  const link = await focused(page);
  await page.keyboard.press("Enter");
  return { link, target: await focused(page) };
}

const selected = page => page.evaluate(() => ({
  here: document.getElementById("here").innerText, said: document.getElementById("said").textContent,
  pointed: [...document.querySelectorAll("rect.pointed")].map(node => node.dataset.around),
  dimmed: document.querySelectorAll("rect.dim").length,
}));

async function usedByKeyboard(page) {
  const done = {};
  const maps = page.locator("#after .map");
  await maps.first().focus();
  await page.keyboard.press("ArrowDown");
  done.down = await selected(page);
  await page.keyboard.press("ArrowRight");
  done.right = await selected(page);
  await page.locator("#owners button").nth(1).focus();
  await page.keyboard.press("Enter");
  done.lit = { ...await selected(page), owner: (await focused(page)).owner, pressed: await page.locator("#owners [aria-pressed=true]").count() };
  await page.keyboard.press("Space");
  done.unlit = await selected(page);
  await page.locator("summary").first().focus();
  await page.keyboard.press("Enter");
  await page.locator("#after details button").nth(2).focus();
  await page.keyboard.press("Enter");
  done.row = { ...await selected(page), prefix: (await focused(page)).prefix };
  if (await page.locator("#switch").isVisible()) {
    await page.locator("#former").focus();
    await page.keyboard.press("Space");
    done.before = [await page.locator("#before").isVisible(), await page.locator("#after").isVisible()];
    await page.keyboard.press("Space");
  }
  return done;
}

async function found(page, texts) {
  const answers = {};
  for (const text of texts) {
    await page.locator("#find").fill(text);
    answers[text] = await selected(page);
  }
  await page.locator("#find").fill("");
  return answers;
}

// What the page says at spots of blocks, large and small, beside what is drawn there. The middle would be on the border of
// whatever blocks are halved into.
async function pointedAt(page) {
  const answers = [];
  const places = await page.evaluate(() => [...document.querySelectorAll("#after .map rect[data-prefix]")].map(node => {
    const box = node.getBoundingClientRect(), all = node.closest("svg").getBoundingClientRect();
    const x = box.x + box.width * .3, y = box.y + box.height * .3;
    const at = [(x - all.x) / all.width, (y - all.y) / all.height];
    return { x, y, at, view: Number(node.closest(".map").dataset.view) };
  }));
  for (const place of places.filter((_, number) => number % Math.ceil(places.length / 60) === 0)) {
    const drawn = await page.evaluate(({ x, y }) => (document.elementFromPoint(x, y) || { dataset: {} }).dataset.prefix, place);
    if (!drawn) continue;
    await page.mouse.move(place.x, place.y);
    answers.push({ drawn, at: place.at, view: place.view, ...await selected(page) });
  }
  return answers;
}

const wide = page => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
const moving = page => page.evaluate(() => [...document.querySelectorAll("*")].filter(node => {
  const style = getComputedStyle(node);
  return parseFloat(style.transitionDuration) > 0 || style.animationName !== "none";
}).length);

async function shots({ name, url, widths, find }) {
  for (const theme of ["light", "dark"]) for (const width of widths) {
    const { page, close } = await open(url, { theme, width });
    if (find) await page.locator("#find").fill(find[0]);
    const height = Math.min(HIGHEST, await page.evaluate(() => document.documentElement.scrollHeight));
    await page.screenshot({ path: `${job.folder}/${name}-${theme}-${width}.png`, clip: { x: 0, y: 0, width, height }, fullPage: true });
    await close();
  }
}

async function look(each) {
  const { page, complaints, requests, close } = await open(each.url);
  const result = { axe: {}, stops: await tabbed(page), moving: await moving(page) };
  await close();
  const again = await open(each.url);
  result.skipped = await skipped(again.page);
  if (each.kind === "map") {
    result.pointed = await pointedAt(again.page);
    result.found = await found(again.page, each.find);
    result.keyboard = await usedByKeyboard(again.page);
    await again.page.pdf({ path: `${job.folder}/${each.name}.pdf`, printBackground: true });
    result.unfolded = await again.page.evaluate(() => [...document.querySelectorAll("details")].every(node => node.open));
  }
  await again.close();
  const narrow = await open(each.url, { width: 320 });
  result.overflow = await wide(narrow.page);
  await narrow.close();
  for (const theme of ["light", "dark"]) result.axe[theme] = await violations(each.url, theme);
  await shots(each);
  result.complaints = [...complaints, ...again.complaints, ...narrow.complaints];
  result.requests = [...new Set([...requests, ...again.requests, ...narrow.requests])];
  return result;
}

const results = {};
for (const each of job.pages) results[each.name] = await look(each);
for (const { name, content, theme, width } of job.pictures) {
  const context = await browser.newContext({ viewport: { width, height: HEIGHT }, colorScheme: theme });
  const page = await context.newPage();
  await page.setContent(`<body style="margin:0">${content}`);
  await page.screenshot({ path: `${job.folder}/${name}-${theme}.png`, fullPage: true });
  await context.close();
}
await browser.close();
console.log(JSON.stringify(results));
