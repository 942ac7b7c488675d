// Light, dark, or automatic: as the page around this one asks, or else the system.

function themes(changed, asked = () => null) {
  const order = ["auto", "light", "dark"];
  const button = el("button", { type: "button", class: "theme" });
  let now = 0;
  const apply = button.apply = () => {
    const theme = now ? order[now] : asked();
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${order[now]}`;
  };
  button.addEventListener("click", () => { now = (now + 1) % order.length; apply(); changed(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  apply();
  return button;
}
