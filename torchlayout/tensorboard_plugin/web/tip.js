// What floats beside the pointer or beside what has the focus.

class Tip {
  constructor(root) {
    this.node = el("div", { class: "tip floating", hidden: true, "aria-hidden": "true" });
    root.append(this.node);
    addEventListener("keydown", (event) => { if (event.key === "Escape") this.hide(); });
    addEventListener("scroll", () => this.hide(), { capture: true, passive: true });
  }

  // At a place in the window; lines are texts or nodes, the first of them the title.
  show(left, top, lines) {
    const { node } = this;
    node.hidden = false;
    refill(node, lines.map((line, number) => el(number ? "div" : "b", {}, line)));
    const x = left + 14 + node.offsetWidth > innerWidth ? left - 14 - node.offsetWidth : left + 14;
    const y = Math.min(top + 14, innerHeight - node.offsetHeight - 4);
    node.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  hide() {
    this.node.hidden = true;
  }

  // Attributes of an element that shows these lines while it is pointed at or has the focus.
  on(lines) {
    return {
      mousemove: (event) => this.show(event.clientX, event.clientY, lines()),
      mouseleave: () => this.hide(),
      focus: (event) => {
        const box = event.currentTarget.getBoundingClientRect();
        this.show(box.left, box.bottom - 8, lines());
      },
      blur: () => this.hide(),
    };
  }
}

// Shares by name, the largest first: what a stacked bar says when asked.
function shareLines(title, shares, show) {
  const found = Object.entries(shares).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  return [title, ...found.map(([name, value]) => el("span", { class: "share" }, swatch(name.split("/")[0]), el("span", {}, name.replace("/", ": ")), el("span", {}, show(value))))];
}
