mount(document.getElementById("report"), JSON.parse(document.getElementById("data").textContent));
