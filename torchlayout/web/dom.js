// Elements without innerHTML: whatever a label or a reason holds stays text.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    else if (name === "vars") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else node.setAttribute(name, value === true ? "" : value);
  }
  return put(node, children);
}

// Appends what there is of nested lists. One at a time: as arguments of a call, long ones overflow its stack.
function put(node, children) {
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

function refill(node, ...children) {
  node.replaceChildren();
  return put(node, children);
}

function section(title, ...children) {
  const id = `section-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return el("section", { class: "card", "aria-labelledby": id }, el("h2", { id }, title), ...children);
}

// A label may break after its signs, where a person would break it.
function broken(label) {
  return label.split(/(?<=[-+])/).flatMap((part, index) => (index ? [el("wbr"), part] : [part]));
}

function dot(colour) {
  return el("span", { class: "dot", "aria-hidden": "true", vars: { "--colour": colour } });
}

function copyButton(text, what) {
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy ${what}` }, "Copy");
  const said = el("span", { class: "unseen", role: "status" });
  button.addEventListener("click", async () => {
    const done = await copied(text);
    button.textContent = done ? "Copied" : "Select and copy";
    said.textContent = done ? `${what} copied` : "copying was refused";
    setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 2000);
  });
  return el("span", {}, button, said);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from http hosts and some viewers have no clipboard: the old way, through a selection.
    const area = el("textarea", { class: "unseen", "aria-hidden": "true", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function codeBlock(title, text) {
  return el("figure", { class: "code" },
    el("figcaption", {}, title, copyButton(text, title)),
    el("pre", { tabindex: "0", "aria-label": title }, el("code", {}, text)));
}

// The colours that the style sheet gives to names such as --ink: a canvas needs them resolved.
function colours(root, ...names) {
  const probe = el("span", { class: "unseen" });
  root.append(probe);
  const found = names.map((name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return found;
}
